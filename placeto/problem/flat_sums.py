"""The arrays by which the simulator lowers a problem: see `placeto.simulator.lowering`.

Legend: N ops, T tensors, E edges, D devices, H hosts, S sums of gradients, C contributions to all of them, Q copied
tensors, R = Q * H relays.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from placeto.problem.cluster import Cluster
from placeto.problem.cluster.cluster import frozen
from placeto.problem.graph import ComputationGraph
from placeto.problem.graph.gradient_sums import gradient_sums
from placeto.problem.graph.label_values import NO_MICRO_BATCH


def relay_name(tensor_of: str, host: int) -> str:
    """Name of the relay of a tensor on a host; the rank of the name decides between events at equal times."""
    return f"{tensor_of} on host {host}"


@lru_cache(maxsize=64)
def copied_tensors(graph: ComputationGraph, cluster: Cluster) -> np.ndarray:
    """(Q,) int64, tensors that cross to another host only once; cached.

    They are made in the forward pass by ops of no micro-batch, and at least two edges lead from them to ops of
    micro-batches. They are parameters, and tensors made from parameters alone, such as a cast to another dtype.
    """
    several = cluster.num_hosts > 1 and cluster.transfers == "unicast"
    if not several or not (graph.micro_batches != NO_MICRO_BATCH).any():
        return frozen(np.empty(0, np.int64))
    made_by = graph.producer
    shared = (graph.micro_batches == NO_MICRO_BATCH) & (np.array(graph.passes) == "forward")
    within = graph.micro_batches[graph.edge_dst] != NO_MICRO_BATCH
    readers = np.bincount(graph.edge_tensor[within], minlength=len(made_by))
    outside = np.zeros(graph.num_ops, bool)  # ops that read a tensor of a micro-batch, such as sums of losses
    outside[graph.edge_dst[graph.micro_batches[graph.edge_src] != NO_MICRO_BATCH]] = True
    return frozen(np.flatnonzero((readers > 1) & shared[made_by] & ~outside[made_by] & (graph.output_bytes > 0)))


def relay_names(graph: ComputationGraph, cluster: Cluster) -> list[str]:
    """(R,) names of the relays: one for each host of the first copied tensor, then those of the next tensor."""
    names, taken = [], set(graph.op_names)
    for tensor in copied_tensors(graph, cluster).tolist():
        op = int(graph.producer[tensor])
        output = tensor - int(graph.output_ptr[op])
        for host in range(cluster.num_hosts):
            name = relay_name(graph.op_names[op] + (f" [{output}]" if output else ""), host)
            while name in taken:
                name += "'"
            taken.add(name)
            names.append(name)
    return names


HEADER = 7
"""How many numbers stand before the arrays of `lowering_array`.

They are R, H, S, C, Q, the number of edges that read copied tensors, and E + R.
"""


def lowering_array(
    graph: ComputationGraph, cluster: Cluster, priority: np.ndarray, by_priority: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return all that lowering reads in one int64 array, and the places and name ranks of ops among ops and relays.

    Kernels take one array at less cost than many. It is empty if nothing is lowered. After `HEADER` numbers it has,
    one after another:

    - host (D,): number of each device's host;
    - sum_home, home_edge (S,): the op at the parameter's home, and the edge that leads into it;
    - sum_ptr (S+1,): offsets of each sum's contributions;
    - part_tensor, part_add, part_edge, part_out (C,): the tensor that is contributed, the op that adds it (-1 for the
      first of a sum), the first of this op's two edges, and the tensor that this op makes;
    - copied_tensor (Q,), reader_ptr (Q+1,), reader_edge: the copied tensors and the edges that read them;
    - relay_rank, relay_priority (R,): of the relays what ``op_rank`` and ``priority`` are of ops;
    - dst, tensor, named (E+R,): the consumer of each edge, the tensor that each edge carries unless lowering changes
      it, and the edges in the order of their consumers' names.

    Args:
        graph: N ops.
        cluster: D devices.
        priority: (N,) place of each op in the order of dispatch.
        by_priority: whether ops are dispatched in this order.

    Returns:
        The array; the place of each op (N,) among ops and relays; the rank of each op's name (N,) among them.
    """
    sums, copied = gradient_sums(graph), copied_tensors(graph, cluster)
    if not len(sums.home) and not len(copied):
        return np.empty(0, np.int64), priority, graph.name_rank
    num_ops, hosts = graph.num_ops, cluster.num_hosts
    relays = len(copied) * hosts
    first = graph.input_ptr
    edge_dst = np.append(graph.edge_dst, num_ops + np.arange(relays))
    rank = _ranks(graph, relay_names(graph, cluster))
    keys = np.append(priority.astype(np.float64), np.repeat(priority[graph.producer[copied]], hosts) + 0.5)
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


def path_us(graph: ComputationGraph, time_us: np.ndarray) -> np.ndarray:
    """(N,) microseconds of each op on a path; 0 for gradient sums, since lowering may take them off the path."""
    additions = gradient_sums(graph).additions
    if not len(additions):
        return time_us
    time_us = time_us.copy()
    time_us[additions] = 0.0
    return time_us
