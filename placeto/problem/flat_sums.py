"""What the simulator needs to know of a problem to lower it: see `placeto.simulator.lowering`.

Legend: N ops, T tensors, E edges, D devices, H hosts, S sums of gradients, C contributions to all of them, Q copied
tensors, R = Q * H relays.
"""

from __future__ import annotations

import numpy as np

from placeto.problem.cluster import Cluster
from placeto.problem.graph import ComputationGraph
from placeto.problem.graph.gradient_sums import GradientSums, gradient_sums
from placeto.problem.graph.labels import NO_MICRO_BATCH


def relay_name(tensor_of: str, host: int) -> str:
    """Name of the op that passes a tensor of another host on to the devices of a host; it decides between equals."""
    return f"{tensor_of} on host {host}"


def copied_tensors(graph: ComputationGraph, cluster: Cluster) -> np.ndarray:
    """(Q,) int64, tensors that cross to another host once: those of no micro-batch that several micro-batches read.

    They are parameters, and what is made of parameters alone, such as a cast to another dtype.
    """
    several = cluster.num_hosts > 1 and cluster.transfers == "unicast"
    if not several or not (graph.micro_batches != NO_MICRO_BATCH).any():
        return np.empty(0, np.int64)
    made_by = np.repeat(np.arange(graph.num_ops), np.diff(graph.output_ptr))
    shared = (graph.micro_batches == NO_MICRO_BATCH) & (np.array(graph.passes) == "forward")
    within = graph.micro_batches[graph.edge_dst] != NO_MICRO_BATCH
    readers = np.bincount(graph.edge_tensor[within], minlength=len(made_by))
    outside = np.zeros(graph.num_ops, bool)  # ops that need something of a micro-batch, such as sums of losses
    outside[graph.edge_dst[graph.micro_batches[graph.edge_src] != NO_MICRO_BATCH]] = True
    return np.flatnonzero((readers > 1) & shared[made_by] & ~outside[made_by] & (graph.output_bytes > 0))


def relay_names(graph: ComputationGraph, cluster: Cluster) -> list[str]:
    """(R,) names: the hosts of the first copied tensor, then those of the next."""
    made_by = np.repeat(np.arange(graph.num_ops), np.diff(graph.output_ptr))
    names, taken = [], set(graph.op_names)
    for tensor in copied_tensors(graph, cluster).tolist():
        op = int(made_by[tensor])
        output = tensor - int(graph.output_ptr[op])
        for host in range(cluster.num_hosts):
            name = relay_name(graph.op_names[op] + (f" [{output}]" if output else ""), host)
            while name in taken:
                name += "'"
            taken.add(name)
            names.append(name)
    return names


HEADER = 7
"""Numbers before the arrays of `lowering_array`: R, H, S, C, Q, edges that read copied tensors, E + R."""


def lowering_array(
    graph: ComputationGraph, cluster: Cluster, priority: np.ndarray, by_priority: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """What lowering reads, in one int64 array, which costs kernels less than many do; empty if nothing is lowered.

    After `HEADER` numbers stand, one after another:

    - host (D,): number of each device's host;
    - sum_home, home_edge (S,): the op at the parameter's home, and the edge into it;
    - sum_ptr (S+1,): offsets of each sum's contributions;
    - part_tensor, part_add, part_edge, part_out (C,): what is contributed, the op that adds it (-1 for the first of a
      sum), the first of that op's two edges, the tensor that it makes;
    - copied_tensor (Q,), reader_ptr (Q+1,), reader_edge: the copied tensors and the edges that read them;
    - relay_rank, relay_priority (R,): as ``op_rank`` and ``priority`` of ops;
    - dst, tensor, named (E+R,): of each edge the consumer, the tensor where the placement doesn't say another, and the
      edges in order of the consumer's name.

    Args:
        graph: N ops.
        cluster: D devices.
        priority: (N,) place of each op in the order of dispatch.
        by_priority: whether ops are dispatched by it.

    Returns:
        The array; the place of each op (N,) among ops and relays; the rank of each op's name (N,) among them.
    """
    sums, copied = gradient_sums(graph), copied_tensors(graph, cluster)
    if not len(sums.home) and not len(copied):
        return np.empty(0, np.int64), priority, graph.name_rank
    num_ops, hosts = graph.num_ops, cluster.num_hosts
    relays = len(copied) * hosts
    made_by = np.repeat(np.arange(num_ops), np.diff(graph.output_ptr))
    first = np.searchsorted(graph.edge_dst, np.arange(num_ops + 1))
    edge_dst = np.append(graph.edge_dst, num_ops + np.arange(relays))
    rank = _ranks(graph, relay_names(graph, cluster))
    keys = np.append(priority.astype(np.float64), np.repeat(priority[made_by[copied]], hosts) + 0.5)
    place = np.argsort(np.argsort(keys, kind="stable"), kind="stable")
    readers = [np.flatnonzero(graph.edge_tensor == tensor) for tensor in copied]
    added = np.maximum(sums.addition, 0)
    arrays = [
        [relays, hosts, len(sums.home), len(sums.tensor), len(copied), sum(map(len, readers)), len(edge_dst)],
        cluster.host,
        sums.home,
        first[sums.home],
        sums.ptr,
        sums.tensor,
        sums.addition,
        first[added],
        graph.output_ptr[added],
        copied,
        np.cumsum([0, *map(len, readers)]),
        *readers,
        rank[num_ops:],
        place[num_ops:],
        edge_dst,
        np.append(graph.edge_tensor, np.repeat(copied, hosts)),
        np.argsort(rank[edge_dst], kind="stable"),
    ]
    place = place[:num_ops] if relays and by_priority else priority
    return np.concatenate(arrays).astype(np.int64), place, rank[:num_ops]


def _ranks(graph: ComputationGraph, relays: list[str]) -> np.ndarray:
    """(N+R,) rank of the names of ops and relays in string order."""
    if not relays:
        return graph.name_rank
    names = [*graph.op_names, *relays]
    rank = np.empty(len(names), np.int64)
    rank[sorted(range(len(names)), key=names.__getitem__)] = np.arange(len(names))
    return rank


def path_us(graph: ComputationGraph, time_us: np.ndarray, sums: GradientSums | None = None) -> np.ndarray:
    """(N,) microseconds that count on a path: of sums none, since lowering may take them off it."""
    additions = (sums or gradient_sums(graph)).additions
    if not len(additions):
        return time_us
    time_us = time_us.copy()
    time_us[additions] = 0.0
    return time_us
