"""The flat arrays that kernels read.

Legend: N ops, T tensors, E edges, D devices, R relays.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from placeto.problem.cluster import LINKS, Cluster
from placeto.problem.flat_sums import lowering_array, path_us
from placeto.problem.graph import ComputationGraph
from placeto.problem.graph.graph_memory import storage

EGRESS, PAIR, FREE = 0, 1, 2
"""Links of a problem: one for each sender, one for each ordered pair of devices, or none (no transfer waits)."""
FIFO, PRIORITY, LIST = 0, 1, 2
"""Dispatch of a problem: see `placeto.problem.dispatch`."""


class FlatProblem(NamedTuple):
    """A problem as flat arrays.

    Nobody may write to the arrays, although they are writable: numba takes read-only arrays for another type than the
    writable ones that lowering makes.

    All integers are int64, all other numbers float64.
    """

    broadcast: np.ndarray  # (1,) int64, 1 = one send for all destinations (only over egress links: see Cluster)
    link: np.ndarray  # (1,) int64, EGRESS, PAIR or FREE
    dispatch: np.ndarray  # (1,) int64, FIFO, PRIORITY or LIST
    link_gap_us: np.ndarray  # (1,)
    # per op
    op_time: np.ndarray  # ((N+R)*D,) us, row-major; 0 for relays
    later_us: np.ndarray  # (N,) us in which the host launches all but the first of the calls that an op stands for
    tail_us: np.ndarray  # (N,) lower bound of the time from the op's end to the makespan
    op_rank: np.ndarray  # (N,) int64, rank of the op's name
    priority: np.ndarray  # (N,) int64, place of each op in the order of dispatch, 0 first; not read under FIFO
    ranked: np.ndarray  # (N,) int64, the ops in the order of dispatch
    num_inputs: np.ndarray  # (N,) int64, edges into the op
    resident: np.ndarray  # (N,) int64, bytes of parameters, gradients and optimizer state
    # edges out of an op, in three orders
    out_ptr: np.ndarray  # (N+1,) offsets of each op's edges in the next three arrays
    out_child: np.ndarray  # (E,) int64, consumers in op order
    out_tensor: np.ndarray  # (E,) int64, the tensors these edges carry
    named_child: np.ndarray  # (E,) int64, consumers in order of (name, output)
    tensor_ptr: np.ndarray  # (T+1,) offsets of each tensor's consumers
    tensor_child: np.ndarray  # (E,) int64, consumers in order of name
    # per tensor
    tensor_src: np.ndarray  # (T,) int64, producer
    tensor_bytes: np.ndarray  # (T,) int64
    storage: np.ndarray  # (T,) int64, the tensor in whose memory each tensor is: itself, unless it is a view
    held_until: np.ndarray  # (T,) int64, op until whose end a tensor lives, if it is on the tensor's device; -1 = none
    live_bytes: np.ndarray  # (T,) int64, bytes that a tensor takes on its producer's device: 0 if it is resident
    # per device
    overhead_us: np.ndarray  # (D,) us after each op that takes time
    launch_us: np.ndarray  # (D,) us in which the host launches an op that takes time
    memory: np.ndarray  # (D,) int64, bytes
    device_rank: np.ndarray  # (D,) int64, rank of the device's name
    bandwidth: np.ndarray  # (D*D,) bytes/us, row-major, from row to column
    latency_us: np.ndarray  # (D*D,)
    path_ptr: np.ndarray  # (D*D+1,) offsets of each pair's shared links in `path_link`
    # per pair and shared link that its transfers cross; then per shared link
    path_link: np.ndarray  # int64, number of the shared link
    shared_bandwidth: np.ndarray  # bytes/us
    # what lowering reads, see `placeto.problem.flat_sums`; empty for a problem that lowering leaves as it is
    lowering: np.ndarray  # int64


def flatten(
    graph: ComputationGraph,
    cluster: Cluster,
    op_time: np.ndarray,
    resident: np.ndarray,
    live: np.ndarray,
    dispatch: int,
    priority: np.ndarray,
    later: np.ndarray | None = None,
) -> FlatProblem:
    """Return one problem as flat arrays.

    Args:
        graph: N ops, T tensors.
        cluster: D devices.
        op_time: (N, D) microseconds.
        resident: (N,) int64, resident bytes of each op.
        live: (T,) int64, bytes of each tensor on its producer's device.
        dispatch: `FIFO`, `PRIORITY` or `LIST`.
        priority: (N,) int64, place of each op in the order of dispatch.
        later: (N,) microseconds in which hosts launch all but the first call of each op; None = 0.
    """
    num_ops, num_tensors, num_devices = graph.num_ops, len(graph.output_bytes), cluster.num_devices
    src, dst, tensor = graph.edge_src, graph.edge_dst, graph.edge_tensor
    lowering, priority, rank = lowering_array(graph, cluster, priority, dispatch == PRIORITY)
    relays = np.zeros((int(lowering[0]) if len(lowering) else 0, num_devices))
    in_op_order = np.argsort(src, kind="stable")  # edges are stored by consumer, in op order
    by_name = np.lexsort((tensor, rank[dst], src))
    by_tensor = np.lexsort((rank[dst], tensor))
    fastest = path_us(graph, op_time.min(axis=1))
    # Slightly less than the sum, so that rounding never makes the bound exceed the makespan.
    tail = (longest_path(graph, fastest, fastest) - fastest) * (1 - 1e-9)

    path_ptr, path_link = cluster.paths
    arrays = FlatProblem(
        broadcast=np.array([cluster.transfers == "broadcast" and cluster.link == "egress"], np.int64),
        link=np.array([LINKS.index(cluster.link)], np.int64),
        dispatch=np.array([dispatch], np.int64),
        link_gap_us=np.array([cluster.link_gap_us], np.float64),
        op_time=np.concatenate([op_time, relays]).ravel(),
        later_us=np.zeros(num_ops) if later is None else later,
        tail_us=np.maximum(tail, 0.0),
        op_rank=rank.astype(np.int64),
        priority=priority.astype(np.int64),
        ranked=np.argsort(priority).astype(np.int64),
        num_inputs=np.bincount(dst, minlength=num_ops).astype(np.int64),
        resident=resident,
        out_ptr=np.searchsorted(src[in_op_order], np.arange(num_ops + 1)).astype(np.int64),
        out_child=dst[in_op_order],
        out_tensor=tensor[in_op_order],
        named_child=dst[by_name],
        tensor_ptr=np.searchsorted(tensor[by_tensor], np.arange(num_tensors + 1)).astype(np.int64),
        tensor_child=dst[by_tensor],
        tensor_src=graph.producer.copy(),
        tensor_bytes=graph.output_bytes.astype(np.int64),
        storage=storage(graph, cluster.has_cpus).astype(np.int64),
        held_until=graph.held_until,
        live_bytes=live,
        overhead_us=cluster.overhead_us.copy(),
        launch_us=cluster.launch_us.copy(),
        memory=cluster.memory.copy(),
        device_rank=cluster.device_rank.copy(),
        bandwidth=cluster.bandwidth.ravel(),
        latency_us=cluster.latency_us.ravel(),
        path_ptr=path_ptr,
        path_link=path_link,
        shared_bandwidth=np.array([link.bandwidth for link in cluster.shared_links], np.float64),
        lowering=lowering,
    )
    return FlatProblem(*map(own, arrays))


def longest_path(graph: ComputationGraph, time: np.ndarray, last: np.ndarray) -> np.ndarray:
    """(N,) longest path from the start of each op. An op takes `time` (N,), and the last op of a path `last` (N,)."""
    from placeto.problem.order_kernels import fill_paths  # here, since it loads numba, and reading a graph needs none

    by_src = np.argsort(graph.edge_src, kind="stable")
    ptr = np.searchsorted(graph.edge_src[by_src], np.arange(graph.num_ops + 1))
    path = last.astype(np.float64)
    fill_paths(own(graph.topological_order), ptr, graph.edge_dst[by_src], time.astype(np.float64), path)
    return path


def own(array: np.ndarray) -> np.ndarray:
    """The array, contiguous and writable, as arrays that kernels make: numba takes others for another type."""
    return np.require(array, requirements=["C", "W"])
