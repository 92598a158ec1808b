"""Units, the groups in the making of `placeto.problem.grouping`, and how they are joined along edges.

Legend: N ops, T tensors, E edges, D devices, P pairs of units.
"""

from __future__ import annotations

import gc
import heapq
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache

import numpy as np

from placeto.problem.graph import ComputationGraph
from placeto.problem.problem import PlacementProblem


class Units:
    """Union-find over ops, with the work and the heaviest op of each unit. A unit's number is that of its root op."""

    def __init__(self, problem: PlacementProblem) -> None:
        time = problem.op_time.mean(axis=1)
        self.work = time.tolist()  # microseconds of each unit, at its root
        self.leader = list(range(len(self.work)))
        self.heaviest = list(range(len(self.work)))  # at the root: the unit's op with most time, or the first such
        self.time = time.tolist()
        self.total = float(time.sum())
        self.count = len(self.work)

    def find(self, op: int) -> int:
        """Return the root of an op's unit: the unit's smallest op, unless it became a part of a hub (see `merge`)."""
        leader = self.leader
        while leader[op] != op:
            leader[op] = leader[leader[op]]
            op = leader[op]
        return op

    def join(self, one: int, other: int) -> int:
        """Join the units of two ops, and return the joined unit."""
        one, other = self.find(one), self.find(other)
        return self.take_in(min(one, other), max(one, other))

    def take_in(self, root: int, part: int) -> int:
        """Make unit `part` a part of unit `root`, and return `root`. Both are roots."""
        if root == part:
            return root
        self.leader[part] = root
        self.work[root] += self.work[part]
        a, b = self.heaviest[root], self.heaviest[part]
        if self.time[b] > self.time[a] or (self.time[b] == self.time[a] and b < a):
            self.heaviest[root] = b
        self.count -= 1
        return root

    def roots(self) -> list[int]:
        """Return all units, in the order of their roots."""
        return [op for op in range(len(self.leader)) if self.leader[op] == op]


def carries(graph: ComputationGraph) -> np.ndarray:
    """(E,) bool, edges that connect two ops for grouping: those whose tensor has bytes.

    Edges without bytes only say which op waits for which. If all outputs of an op are empty, all of its edges count.
    """
    total = np.bincount(graph.producer, graph.output_bytes, graph.num_ops)
    return (graph.output_bytes[graph.edge_tensor] > 0) | (total[graph.edge_src] == 0)


@lru_cache(maxsize=16)
def neighbours(graph: ComputationGraph) -> tuple[list[list[tuple[int, int]]], list[list[tuple[int, int]]]]:
    """Return lists of producers and of consumers of each op, as (op, bytes of the tensor); cached.

    Only the edges of `carries` count.
    """
    producers: list[list[tuple[int, int]]] = [[] for _ in range(graph.num_ops)]
    consumers: list[list[tuple[int, int]]] = [[] for _ in range(graph.num_ops)]
    kept = carries(graph)
    size = graph.output_bytes[graph.edge_tensor[kept]].tolist()
    for src, dst, number in zip(graph.edge_src[kept].tolist(), graph.edge_dst[kept].tolist(), size, strict=True):
        producers[dst].append((src, number))
        consumers[src].append((dst, number))
    return producers, consumers


def unit_pairs(problem: PlacementProblem, units: Units) -> tuple[np.ndarray, np.ndarray]:
    """Return pairs of units that exchange tensors (2, P), and the transfer time of the largest one (P,), in us."""
    graph = problem.graph
    unit = np.array([units.find(op) for op in range(graph.num_ops)], np.int64)
    kept = carries(graph) & (unit[graph.edge_src] != unit[graph.edge_dst])
    ends = np.sort(np.stack([unit[graph.edge_src[kept]], unit[graph.edge_dst[kept]]]), 0)
    pair = ends[0] * graph.num_ops + ends[1]
    order = np.argsort(pair, kind="stable")
    first = np.flatnonzero(np.diff(pair[order], prepend=-1))
    time = transfer_us(problem)[graph.edge_tensor[kept]][order]
    return ends[:, order[first]], np.maximum.reduceat(time, first) if len(first) else time


def unit_edges(problem: PlacementProblem, units: Units) -> dict[int, dict[int, float]]:
    """Return unit -> neighbour -> transfer time in microseconds of the largest tensor between the two."""
    edges: dict[int, dict[int, float]] = {root: {} for root in units.roots()}
    pairs, longest = unit_pairs(problem, units)
    for a, b, us in zip(*pairs.tolist(), longest.tolist(), strict=True):
        edges[a][b] = edges[b][a] = us
    return edges


@contextmanager
def without_collector() -> Iterator[None]:
    """Switch Python's garbage collector off for the block: it would take two fifths of the time of many small lists."""
    rests = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if rests:
            gc.enable()


_HUB = 1000  # a unit with more neighbours is a hub; units of captured models have fewer


def merge(units: Units, edges: dict[int, dict[int, float]], first: int, second: int) -> int:
    """Join two units and their edges, and return the joined unit.

    It has the smaller number of the two, unless the other one is a hub with more neighbours. Otherwise the edges of a
    star's centre would be moved for each leaf.
    """
    kept, gone = min(first, second), max(first, second)
    if len(edges[gone]) > max(_HUB, len(edges[kept])):
        kept, gone = gone, kept
    units.take_in(kept, gone)
    for neighbour, time in edges.pop(gone).items():
        edges[neighbour].pop(gone, None)
        if neighbour != kept:
            edges[kept][neighbour] = edges[neighbour][kept] = max(edges[kept].get(neighbour, 0.0), time)
    return kept


def transfer_us(problem: PlacementProblem) -> np.ndarray:
    """(T,) microseconds that each tensor takes over the mean link of the cluster; 0 if there is one device."""
    cluster, bytes_ = problem.cluster, problem.graph.output_bytes
    off = ~np.eye(cluster.num_devices, dtype=bool)
    if not off.any():
        return np.zeros(len(bytes_))
    return cluster.latency_us[off].mean() + bytes_ * (1.0 / cluster.bandwidth[off]).mean()


_STALE = 1.05  # a pair whose cost rose by this factor is put back into the heap; at 1 a weight read by all takes O(N^2)
_STALE_AT_HUB = 2.0  # this factor for a pair with a hub, whose pairs all rise together


def coarsen(problem: PlacementProblem, units: Units, max_groups: int) -> None:
    """Join units until there are at most `max_groups`: first those with most transfer for the work that they have."""
    if units.count <= max_groups:
        return
    edges = unit_edges(problem, units)
    limit = max(2.0 * units.total / max_groups, 1e-9)
    heap: list[tuple[float, int, int]] = []
    newest: dict[tuple[int, int], float] = {}  # cost of each pair's valid entry in the heap

    def push(unit: int, neighbour: int) -> None:
        pair = (unit, neighbour) if unit < neighbour else (neighbour, unit)
        newest[pair] = _cost(units, *pair, edges[unit][neighbour])
        heapq.heappush(heap, (newest[pair], *pair))

    for _ in range(3):  # the limit on a unit's work grows if it leaves too many units
        for unit in edges:
            for neighbour in edges[unit]:
                if unit < neighbour:
                    push(unit, neighbour)
        while heap and units.count > max_groups:
            cost_then, a, b = heapq.heappop(heap)
            if newest[a, b] != cost_then or a not in edges or b not in edges[a]:
                continue
            if units.work[a] + units.work[b] > limit:
                continue
            at_hub = max(len(edges[a]), len(edges[b])) > _HUB
            if _cost(units, a, b, edges[a][b]) > (_STALE_AT_HUB if at_hub else _STALE) * cost_then:
                push(a, b)
                continue
            near_a, near_b = edges[a], edges[b]
            kept = merge(units, edges, a, b)
            # the cost of the pairs that `kept` had before has only risen
            for neighbour in near_b if kept == a else near_a:
                if neighbour != kept:
                    push(kept, neighbour)
        limit *= 4.0
    _coarsen_unconnected(units, max_groups)


def _cost(units: Units, a: int, b: int, transfer: float) -> float:
    return (units.work[a] + units.work[b] + 1e-9) / (transfer + 1e-9)


def _coarsen_unconnected(units: Units, max_groups: int) -> None:
    """Join the two lightest units until there are at most `max_groups`, whether or not edges connect them."""
    heap = [(units.work[root], root) for root in units.roots()]
    heapq.heapify(heap)
    while units.count > max_groups:
        kept = units.join(heapq.heappop(heap)[1], heapq.heappop(heap)[1])
        heapq.heappush(heap, (units.work[kept], kept))


def op_outputs(problem: PlacementProblem) -> np.ndarray:
    """(N,) float64, bytes of each op's outputs that aren't resident memory."""
    total = np.concatenate([[0], np.cumsum(problem.live_bytes, dtype=np.float64)])
    return np.diff(total[problem.graph.output_ptr])
