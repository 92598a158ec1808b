"""Placement problem and schedule -> tensors with named columns, for many (graph, placement) pairs at once.

Legend: C instances, B episodes, V nodes (groups) of all episodes together, M arcs between groups, G groups of the
largest graph, D devices of the largest cluster, N ops, A tensor arcs, P pair arcs of one instance.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
import torch
from numba import njit, prange
from torch_geometric.data import Data

from placeto.environment.observation_kernel import (
    EDGE_FEATURES,
    NODE_FEATURES,
    NODE_INDEX,
    PAIR_FEATURES,
    PAIR_INDEX,
    observe_one,
)
from placeto.problem.grouping import Groups, group_ops
from placeto.problem.problem import FlatProblems, PlacementProblem, ProblemBatch
from placeto.simulator import kernel, memory
from placeto.simulator.evaluator import MEMORY_PENALTY
from placeto.simulator.schedule import SERIAL_BELOW

__all__ = [
    "EDGE_FEATURES",
    "FEATURE_SETS",
    "NODE_FEATURES",
    "NODE_INDEX",
    "PAIR_FEATURES",
    "PAIR_INDEX",
    "Instance",
    "InstanceBatch",
    "make_instance",
    "observe",
    "penalised",
    "score_moves",
]

FEATURE_SETS = {
    "schedule": (NODE_FEATURES, PAIR_FEATURES, EDGE_FEATURES),
    # section 3.2 of the paper: run time, output size, placement, visited and current flags
    "paper": (("time", "transfer_out", "visited", "is_current"), ("current", "time"), ("transfer",)),
}
"""Columns (of nodes, of (node, device) pairs, of arcs) that a policy may ask for by name."""


def penalised(makespan_us: np.ndarray, overflow: np.ndarray) -> np.ndarray:
    """Makespan times 1 + `MEMORY_PENALTY` x the memory over the limit, as a fraction of each device's memory."""
    return makespan_us * (1.0 + MEMORY_PENALTY * overflow)


@dataclass(frozen=True, eq=False)
class Instance:
    """A graph on a cluster, its ops in groups, as flat arrays. Make one with `make_instance`."""

    problem: PlacementProblem
    groups: Groups
    ints: dict[str, np.ndarray]  # name -> int64 array
    floats: dict[str, np.ndarray]  # name -> float64 array
    pairs: np.ndarray  # (2, P) int64, arcs between groups
    traversal: np.ndarray  # (G,) int64, position of each group in topological order

    @cached_property
    def reach(self) -> np.ndarray:
        """(G, G) bool, [i, j] = i comes before j along arcs that follow the traversal."""
        return _reach(self.pairs, self.traversal)


@lru_cache(maxsize=1024)
def make_instance(problem: PlacementProblem, groups: Groups | None = None) -> Instance:
    """Prepare a problem and its groups (those of `group_ops` if not given) for `observe`; cached."""
    groups = group_ops(problem) if groups is None else groups
    graph, cluster, group = problem.graph, problem.cluster, groups.group
    num_ops, num_groups = graph.num_ops, groups.num_groups
    position = np.empty(num_ops, np.int64)
    position[graph.topological_order] = np.arange(num_ops)
    group_ops_sorted = np.lexsort((position, group))
    group_ptr = np.searchsorted(group[group_ops_sorted], np.arange(num_groups + 1))
    tensor_bytes = graph.output_bytes[graph.edge_tensor].astype(np.float64)

    # tensor arcs: one for each tensor and each other group that reads it
    crossing = group[graph.edge_src] != group[graph.edge_dst]
    key = np.stack([graph.edge_tensor[crossing], group[graph.edge_dst[crossing]]])
    arcs, inverse = np.unique(key, axis=1, return_inverse=True)
    in_arc = np.full(graph.num_edges, -1, np.int64)
    in_arc[crossing] = inverse.ravel()
    producer = np.searchsorted(graph.output_ptr, arcs[0], side="right") - 1
    pairs, arc_pair = np.unique(np.stack([group[producer], arcs[1]]), axis=1, return_inverse=True)

    by_src = np.argsort(graph.edge_src, kind="stable")
    first = position[group_ops_sorted[group_ptr[:-1]]]
    traversal = np.empty(num_groups, np.int64)
    traversal[np.argsort(first, kind="stable")] = np.arange(num_groups)
    ints = {
        "group": group.astype(np.int64),
        "group_ops": group_ops_sorted.astype(np.int64),
        "group_ptr": group_ptr.astype(np.int64),
        "in_ptr": np.searchsorted(graph.edge_dst, np.arange(num_ops + 1)).astype(np.int64),
        "in_src": graph.edge_src.astype(np.int64),
        "in_arc": in_arc,
        "out_ptr": np.searchsorted(graph.edge_src[by_src], np.arange(num_ops + 1)).astype(np.int64),
        "out_dst": graph.edge_dst[by_src].astype(np.int64),
        "out_same": (~crossing[by_src]).astype(np.int64),
        "arc_src": producer.astype(np.int64),
        "arc_dst": arcs[1].astype(np.int64),
        "arc_pair": arc_pair.ravel().astype(np.int64),
    }
    floats = {
        "op_time": np.ascontiguousarray(problem.op_time, np.float64).ravel(),
        "in_bytes": tensor_bytes,
        "out_bytes": tensor_bytes[by_src],
        "arc_bytes": graph.output_bytes[arcs[0]].astype(np.float64),
        "group_params": np.bincount(group, weights=problem.resident_bytes.astype(np.float64), minlength=num_groups),
        "overhead": np.asarray(cluster.overhead_us, np.float64),
        "latency": np.asarray(cluster.latency_us, np.float64).ravel(),
        "bandwidth": np.asarray(cluster.bandwidth, np.float64).ravel(),
        "memory": np.asarray(cluster.memory, np.float64),
        "scalars": np.array([problem.single_device_us, problem.lower_bound_us]),
    }
    return Instance(problem, groups, ints, floats, pairs.astype(np.int64), traversal)


def _reach(pairs: np.ndarray, traversal: np.ndarray) -> np.ndarray:
    """Transitive closure of the arcs that go forward in the traversal: (G, G) bool."""
    num_groups = len(traversal)
    reach = np.zeros((num_groups, num_groups), bool)
    order = np.argsort(traversal)
    children: list[list[int]] = [[] for _ in range(num_groups)]
    for src, dst in pairs.T.tolist():
        if traversal[src] < traversal[dst]:
            children[src].append(dst)
    for i in order[::-1].tolist():
        for j in children[i]:
            reach[i, j] = True
            reach[i] |= reach[j]
    return reach


INTS = (
    "group", "group_ops", "group_ptr", "in_ptr", "in_src", "in_arc", "out_ptr", "out_dst", "out_same",
    "arc_src", "arc_dst", "arc_pair",
)  # fmt: skip
FLOATS = ("op_time", "in_bytes", "out_bytes", "arc_bytes", "group_params", "overhead", "latency", "bandwidth", "memory",
          "scalars")  # fmt: skip


@dataclass(frozen=True, eq=False)
class InstanceBatch:
    """C instances in one set of flat arrays; their graphs and clusters may differ in everything."""

    instances: tuple[Instance, ...]  # (C,)
    problems: ProblemBatch
    ints: tuple[np.ndarray, ...]  # one int64 array per name of INTS, all instances one after another
    floats: tuple[np.ndarray, ...]  # one float64 array per name of FLOATS
    int_offset: np.ndarray  # (C+1, len(INTS)) int64
    float_offset: np.ndarray  # (C+1, len(FLOATS)) int64
    num_groups: np.ndarray  # (C,) int64
    num_devices: np.ndarray  # (C,) int64
    num_pairs: np.ndarray  # (C,) int64
    single_us: np.ndarray  # (C,) float64, best single-device makespan

    @classmethod
    def of(cls, instances: Sequence[Instance]) -> InstanceBatch:
        """Concatenate instances."""
        ints = tuple(np.concatenate([i.ints[name] for i in instances]) for name in INTS)
        floats = tuple(np.concatenate([i.floats[name] for i in instances]) for name in FLOATS)
        int_sizes = [[0] * len(INTS)] + [[len(i.ints[name]) for name in INTS] for i in instances]
        float_sizes = [[0] * len(FLOATS)] + [[len(i.floats[name]) for name in FLOATS] for i in instances]
        return cls(
            instances=tuple(instances),
            problems=ProblemBatch.of([i.problem for i in instances]),
            ints=ints,
            floats=floats,
            int_offset=np.cumsum(int_sizes, axis=0, dtype=np.int64),
            float_offset=np.cumsum(float_sizes, axis=0, dtype=np.int64),
            num_groups=np.array([i.groups.num_groups for i in instances], np.int64),
            num_devices=np.array([i.problem.num_devices for i in instances], np.int64),
            num_pairs=np.array([i.pairs.shape[1] for i in instances], np.int64),
            single_us=np.array([i.problem.single_device_us for i in instances]),
        )

    @property
    def max_groups(self) -> int:
        """G, the groups of the largest instance."""
        return int(self.num_groups.max())


def observe(
    batch: InstanceBatch, index: np.ndarray, placement: np.ndarray, visited: np.ndarray, steps: np.ndarray
) -> tuple[Data, np.ndarray, np.ndarray]:
    """Simulate B placements of groups and describe their schedules.

    Args:
        batch: the instances.
        index: (B,) int64, instance of each episode.
        placement: (B, G) int64, device of each group.
        visited: (B, G) bool, groups already moved in this sweep.
        steps: (B,) int64, moves made so far.

    Returns:
        A `Data` of all episodes together, makespans (B,) in microseconds and memory overflows (B,). Its fields:
        ``x`` (V, node features), ``pair`` (V, D, pair features), ``edge_index`` (2, M), ``edge_attr`` (M, edge
        features), ``batch`` (V,) episode, ``local`` (V,) group within it, ``first`` (B,) its first node, ``current``
        (V,) device, ``marked`` (V,) visited, ``exists`` (V, D) device exists, ``traversal`` (V,) position in
        topological order, ``reach`` (B, G, G), ``num_graphs``, ``max_nodes``.
    """
    sizes, arcs = batch.num_groups[index], batch.num_pairs[index]
    first = np.concatenate([[0], np.cumsum(sizes)])
    arc_first = np.concatenate([[0], np.cumsum(arcs)])
    devices = int(batch.num_devices[index].max())
    node = np.zeros((first[-1], len(NODE_FEATURES)), np.float32)
    pair = np.zeros((first[-1], devices, len(PAIR_FEATURES)), np.float32)
    edge = np.zeros((arc_first[-1], len(EDGE_FEATURES)), np.float32)
    makespan, overflow = np.empty(len(index)), np.empty(len(index))
    placement = np.ascontiguousarray(placement, np.int64)
    kernel = _observe_parallel if len(index) >= SERIAL_BELOW else _observe_serial
    kernel(
        batch.problems.arrays,
        batch.ints,
        batch.floats,
        batch.int_offset,
        batch.float_offset,
        np.ascontiguousarray(index, np.int64),
        placement,
        first,
        arc_first,
        node,
        pair,
        edge,
        makespan,
        overflow,
    )
    of = np.repeat(np.arange(len(index)), sizes)
    local = np.arange(first[-1]) - first[of]
    marked = visited[of, local]
    node[:, NODE_INDEX["visited"]] = marked
    node[:, NODE_INDEX["steps_left"]] = (1.0 - (steps % sizes) / sizes)[of]
    instances = [batch.instances[i] for i in index]
    data = Data(
        x=torch.from_numpy(node),
        edge_index=torch.from_numpy(np.concatenate([i.pairs + f for i, f in zip(instances, first, strict=False)], 1)),
        edge_attr=torch.from_numpy(edge),
    )
    data.pair = torch.from_numpy(pair)
    data.batch = torch.from_numpy(of)
    data.local = torch.from_numpy(local)
    data.first = torch.from_numpy(first[:-1])
    data.current = torch.from_numpy(placement[of, local])
    data.marked = torch.from_numpy(marked)
    data.exists = torch.arange(devices)[None] < torch.from_numpy(batch.num_devices[index][of])[:, None]
    data.traversal = torch.from_numpy(np.concatenate([i.traversal for i in instances]))
    data.instances = instances
    data.num_graphs = len(index)
    data.max_nodes = int(sizes.max())
    return data, makespan, overflow


def reach_matrix(data: Data) -> torch.Tensor:
    """(B, G, G) bool, which groups come before which, for the pooling over ancestors and descendants."""
    reach = torch.zeros(data.num_graphs, data.max_nodes, data.max_nodes, dtype=torch.bool)
    for b, instance in enumerate(data.instances):
        size = len(instance.reach)
        reach[b, :size, :size] = torch.from_numpy(instance.reach)
    return reach


def score_moves(
    batch: InstanceBatch, index: np.ndarray, placement: np.ndarray, group: np.ndarray, device: np.ndarray
) -> np.ndarray:
    """Penalised makespans (B, L), in microseconds, after each of L single moves from each of B placements.

    Args:
        batch: the instances.
        index: (B,) int64, instance of each placement.
        placement: (B, G) int64, device of each group.
        group: (B, L) int64, which group moves.
        device: (B, L) int64, where to.
    """
    makespan, overflow = np.empty(group.shape), np.empty(group.shape)
    _score_moves(
        batch.problems.arrays,
        batch.ints[0],
        batch.int_offset[:, 0].copy(),
        np.ascontiguousarray(index, np.int64),
        np.ascontiguousarray(placement, np.int64),
        np.ascontiguousarray(group, np.int64),
        np.ascontiguousarray(device, np.int64),
        makespan,
        overflow,
    )
    return penalised(makespan, overflow)


@njit(cache=True, parallel=True)
def _score_moves(
    flat: FlatProblems,
    group_of: np.ndarray,
    offset: np.ndarray,
    index: np.ndarray,
    placement: np.ndarray,
    group: np.ndarray,
    device: np.ndarray,
    makespan: np.ndarray,
    overflow: np.ndarray,
) -> None:
    episodes, moves = group.shape
    for k in prange(episodes * moves):
        b, m = k // moves, k % moves
        p = index[b]
        of = group_of[offset[p] : offset[p + 1]]
        ops = np.empty(len(of), np.int64)
        for i in range(len(of)):
            ops[i] = device[b, m] if of[i] == group[b, m] else placement[b, of[i]]
        makespan[b, m], overflow[b, m] = memory.score(flat, p, ops, np.inf)


def _observe_batch(
    flat: FlatProblems,
    ints: tuple[np.ndarray, ...],
    floats: tuple[np.ndarray, ...],
    int_offset: np.ndarray,
    float_offset: np.ndarray,
    index: np.ndarray,
    placement: np.ndarray,
    first: np.ndarray,
    arc_first: np.ndarray,
    node: np.ndarray,
    pair: np.ndarray,
    edge: np.ndarray,
    makespan: np.ndarray,
    overflow: np.ndarray,
) -> None:
    for b in prange(len(index)):
        p = index[b]
        i0, i1, f0, f1 = int_offset[p], int_offset[p + 1], float_offset[p], float_offset[p + 1]
        group = ints[0][i0[0] : i1[0]]
        num_ops = len(group)
        devices = flat.device_offset[p + 1] - flat.device_offset[p]
        ops = np.empty(num_ops, np.int64)
        for i in range(num_ops):
            ops[i] = placement[b, group[i]]
        record = kernel.new_record(flat, p)
        span, num_sends = kernel.run(flat, p, ops, record, np.inf)
        makespan[b] = span
        overflow[b] = memory.memory_overflow(flat, p, ops, record, num_sends)
        op_slack, send_slack = np.empty(num_ops), np.empty(num_sends)
        kernel.slack(flat, p, ops, record, num_sends, span, op_slack, send_slack)
        order = np.empty(num_ops, np.int64)
        count = 0
        for k in range(num_ops + num_sends):
            if record.order[k] < num_ops:
                order[count] = record.order[k]
                count += 1
        observe_one(
            ops,
            floats[0][f0[0] : f1[0]].reshape(num_ops, devices),
            group,
            ints[2][i0[2] : i1[2]],
            ints[1][i0[1] : i1[1]],
            ints[3][i0[3] : i1[3]],
            ints[4][i0[4] : i1[4]],
            floats[1][f0[1] : f1[1]],
            ints[5][i0[5] : i1[5]],
            ints[6][i0[6] : i1[6]],
            ints[7][i0[7] : i1[7]],
            floats[2][f0[2] : f1[2]],
            ints[8][i0[8] : i1[8]],
            ints[9][i0[9] : i1[9]],
            ints[10][i0[10] : i1[10]],
            floats[3][f0[3] : f1[3]],
            ints[11][i0[11] : i1[11]],
            floats[4][f0[4] : f1[4]],
            floats[5][f0[5] : f1[5]],
            floats[6][f0[6] : f1[6]].reshape(devices, devices),
            floats[7][f0[7] : f1[7]].reshape(devices, devices),
            floats[8][f0[8] : f1[8]],
            floats[9][f0[9] : f1[9]],
            record.start,
            record.finish,
            op_slack,
            span,
            order,
            node[first[b] : first[b + 1]],
            pair[first[b] : first[b + 1]],
            edge[arc_first[b] : arc_first[b + 1]],
        )


_observe_parallel = njit(cache=True, parallel=True)(_observe_batch)
_observe_serial = njit(cache=True)(_observe_batch)
