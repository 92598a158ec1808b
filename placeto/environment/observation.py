"""Placement problem and schedule -> tensors with named columns, for many (graph, placement) pairs at once.

Legend: C instances, B episodes, V nodes (groups) of all episodes together, M arcs between groups, G groups of the
largest graph, D devices of the largest cluster, N ops.
"""

from __future__ import annotations

import numpy as np
import torch
from numba import njit, prange
from torch_geometric.data import Data

from placeto.environment.columns import EDGE, NODE, PAIR
from placeto.environment.instance import FlatInstances, InstanceBatch
from placeto.environment.kernel import describe, situation
from placeto.problem.flat import FlatProblems
from placeto.simulator import kernel, memory
from placeto.simulator.memory import penalised
from placeto.simulator.schedule import SERIAL_BELOW
from placeto.simulator.slack import fill_slack


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
    node = np.zeros((first[-1], len(NODE)), np.float32)
    pair = np.zeros((first[-1], devices, len(PAIR)), np.float32)
    edge = np.zeros((arc_first[-1], len(EDGE)), np.float32)
    makespan, overflow = np.empty(len(index)), np.empty(len(index))
    placement = np.ascontiguousarray(placement, np.int64)
    run = _observe_parallel if len(index) >= SERIAL_BELOW else _observe_serial
    run(
        batch.problems.arrays,
        batch.arrays,
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
    node[:, NODE.visited] = marked
    node[:, NODE.steps_left] = (1.0 - (steps % sizes) / sizes)[of]
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
        batch.arrays.group,
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
        of = group_of[flat.op_offset[p] : flat.op_offset[p + 1]]
        ops = np.empty(len(of), np.int64)
        for i in range(len(of)):
            ops[i] = device[b, m] if of[i] == group[b, m] else placement[b, of[i]]
        makespan[b, m], overflow[b, m] = memory.score(flat, p, ops, np.inf)


def _observe_batch(
    flat: FlatProblems,
    instances: FlatInstances,
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
        group = instances.group[flat.op_offset[p] : flat.op_offset[p + 1]]
        ops = np.empty(len(group), np.int64)
        for i in range(len(group)):
            ops[i] = placement[b, group[i]]
        record = kernel.new_record(flat, p)
        span, num_sends = kernel.run(flat, p, ops, record, np.inf)
        makespan[b] = span
        overflow[b] = memory.memory_overflow(flat, p, ops, record, num_sends)
        op_slack, send_slack = np.empty(len(group)), np.empty(num_sends)
        fill_slack(flat, p, ops, record, num_sends, span, op_slack, send_slack)
        describe(
            situation(flat, instances, p, ops, record, num_sends, span, op_slack),
            instances.single_us[p],
            instances.lower_bound_us[p],
            node[first[b] : first[b + 1]],
            pair[first[b] : first[b + 1]],
            edge[arc_first[b] : arc_first[b + 1]],
        )


_observe_parallel = njit(cache=True, parallel=True)(_observe_batch)
_observe_serial = njit(cache=True)(_observe_batch)
