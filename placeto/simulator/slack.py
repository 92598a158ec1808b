"""The kernel for slack: how much later the ops and sends of a schedule may end.

Legend: N ops, S sends, D devices.
"""

from __future__ import annotations

import numpy as np

from placeto.plumbing.compiling import compiled
from placeto.problem.flat import FREE, PAIR, FlatProblem
from placeto.simulator.kernel import Record


@compiled()
def fill_slack(
    flat: FlatProblem,
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
    n, d, op_time = len(flat.op_rank), len(flat.overhead_us), flat.op_time
    pair, free_links, gap = flat.link[0] == PAIR, flat.link[0] == FREE, flat.link_gap_us[0]
    path_ptr, path_link, out_ptr, out_child = flat.path_ptr, flat.path_link, flat.out_ptr, flat.out_child
    tensor_ptr, tensor_child, tensor_src = flat.tensor_ptr, flat.tensor_child, flat.tensor_src
    start, finish, order = record.start, record.finish, record.order
    send_tensor, send_dst = record.send_tensor, record.send_dst
    send_start, send_finish = record.send_start, record.send_finish

    # Start and slack of the next op on each device, or send on each link; at the end of the step the makespan and 0.
    next_start = np.full(d + d * d, makespan)
    next_slack = np.zeros(d + d * d)
    next_shared = np.full(len(flat.shared_bandwidth), np.inf)  # latest start of the next send over it
    op_slack[:n] = np.inf
    for position in range(n + num_sends - 1, -1, -1):
        i = order[position]
        if i < n:
            src = placement[i]
            free = finish[i]
            if op_time[i * d + src] != 0.0:
                free += flat.overhead_us[src]
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
                size = flat.tensor_bytes[tensor]
                for k in range(path_ptr[src * d + dst], path_ptr[src * d + dst + 1]):
                    busy = size / flat.shared_bandwidth[path_link[k]]
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
