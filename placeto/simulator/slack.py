"""The kernel for slack: how much later the ops and sends of a schedule may end.

Legend: N ops, S sends, D devices.
"""

from __future__ import annotations

import numpy as np

from placeto.plumbing.compiling import compiled
from placeto.problem.flat import FREE, PAIR, FlatProblems
from placeto.simulator.kernel import Record


@compiled()
def fill_slack(
    flat: FlatProblems,
    p: int,
    placement: np.ndarray,
    record: Record,
    num_sends: int,
    makespan: float,
    op_slack: np.ndarray,
    send_slack: np.ndarray,
) -> None:
    """Fill `op_slack` (N,) and `send_slack` (S,): microseconds by which each may end later without a longer makespan.

    It is one backward pass over the recorded starts, along these arcs: from an op to a consumer on its device, to a
    send, and to the device's next op (after the overhead); from a send to a consumer, to the link's next send (after
    the gap), and to the next send over a shared link (when this send's bytes have crossed it).
    """
    op0, op1 = flat.op_offset[p], flat.op_offset[p + 1]
    edge0, edge1 = flat.edge_offset[p], flat.edge_offset[p + 1]
    tensor0, tensor1 = flat.tensor_offset[p], flat.tensor_offset[p + 1]
    device0 = flat.device_offset[p]
    n, d = op1 - op0, flat.device_offset[p + 1] - device0
    shared0 = flat.shared_offset[p]
    pair, free_links, gap = flat.link[p] == PAIR, flat.link[p] == FREE, flat.link_gap_us[p]
    path_ptr = flat.path_ptr[flat.pair_offset[p] + p : flat.pair_offset[p + 1] + p + 1]
    path_link = flat.path_link[flat.path_offset[p] : flat.path_offset[p + 1]]
    op_time = flat.op_time[flat.time_offset[p] : flat.time_offset[p + 1]]
    out_ptr, out_child = flat.out_ptr[op0 + p : op1 + p + 1], flat.out_child[edge0:edge1]
    tensor_ptr = flat.tensor_ptr[tensor0 + p : tensor1 + p + 1]
    tensor_child, tensor_src = flat.tensor_child[edge0:edge1], flat.tensor_src[tensor0:tensor1]
    start, finish, order = record.start, record.finish, record.order
    send_tensor, send_dst = record.send_tensor, record.send_dst
    send_start, send_finish = record.send_start, record.send_finish

    # Start and slack of the next op on each device, or send on each link; at the end of the step the makespan and 0.
    next_start = np.full(d + d * d, makespan)
    next_slack = np.zeros(d + d * d)
    next_shared = np.full(flat.shared_offset[p + 1] - shared0, np.inf)  # latest start of the next send over it
    op_slack[:n] = np.inf
    for position in range(n + num_sends - 1, -1, -1):
        i = order[position]
        if i < n:
            src = placement[i]
            free = finish[i]
            if op_time[i * d + src] != 0.0:
                free += flat.overhead_us[device0 + src]
            slack = min(op_slack[i], next_start[src] - free + next_slack[src])
            for k in range(out_ptr[i], out_ptr[i + 1]):
                child = out_child[k]
                if placement[child] == src:
                    slack = min(slack, start[child] - finish[i] + op_slack[child])
            op_slack[i] = slack
            next_start[src], next_slack[src] = start[i], slack
        else:
            send = i - n
            tensor, dst = send_tensor[send], send_dst[send]
            producer = tensor_src[tensor]
            src = placement[producer]
            if free_links:
                slack = makespan - send_finish[send]
            else:
                link = d + (src * d + dst if pair else src)
                slack = next_start[link] - (send_finish[send] + gap) + next_slack[link]
            if len(path_link) > 0:
                size = flat.tensor_bytes[tensor0 + tensor]
                for k in range(path_ptr[src * d + dst], path_ptr[src * d + dst + 1]):
                    busy = size / flat.shared_bandwidth[shared0 + path_link[k]]
                    slack = min(slack, next_shared[path_link[k]] - (send_start[send] + busy))
            for k in range(tensor_ptr[tensor], tensor_ptr[tensor + 1]):
                child = tensor_child[k]
                s = placement[child]
                if s == dst or (dst < 0 and s != src):
                    slack = min(slack, start[child] - send_finish[send] + op_slack[child])
            send_slack[send] = slack
            if not free_links:
                next_start[link], next_slack[link] = send_start[send], slack
            if len(path_link) > 0:
                for k in range(path_ptr[src * d + dst], path_ptr[src * d + dst + 1]):
                    next_shared[path_link[k]] = send_start[send] + slack
            # The producer starts before its sends, so the backward pass visits it later.
            op_slack[producer] = min(op_slack[producer], send_start[send] - finish[producer] + slack)
