"""Placement problem and schedule -> arrays with named columns, for many (graph, placement) pairs at once.

Legend: C instances, B episodes, V nodes (groups) of all episodes together, M arcs between groups, G groups of the
largest graph, D devices of the largest cluster, N ops.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import njit, prange

from placeto.environment.columns import EDGE, NODE, PAIR
from placeto.environment.instance import FlatInstances, Instance, InstanceBatch
from placeto.environment.kernel import describe, situation
from placeto.problem.flat import FlatProblems
from placeto.simulator import kernel, memory
from placeto.simulator.memory import penalised
from placeto.simulator.schedule import SERIAL_BELOW
from placeto.simulator.slack import fill_slack


@dataclass(frozen=True, eq=False)
class Observation:
    """What there is to see of B episodes, one after another."""

    node: np.ndarray  # (V, node features) float32
    pair: np.ndarray  # (V, D, pair features) float32
    arcs: np.ndarray  # (2, M) int64, from which node to which
    edge: np.ndarray  # (M, edge features) float32
    first: np.ndarray  # (B+1,) int64, first node of each episode
    of: np.ndarray  # (V,) int64, episode
    local: np.ndarray  # (V,) int64, group within the episode
    current: np.ndarray  # (V,) int64, device
    marked: np.ndarray  # (V,) bool, visited
    exists: np.ndarray  # (V, D) bool, the cluster has that device
    traversal: np.ndarray  # (V,) int64, position in topological order
    instances: tuple[Instance, ...]  # (B,)


def observe(
    batch: InstanceBatch, index: np.ndarray, placement: np.ndarray, visited: np.ndarray, steps: np.ndarray
) -> tuple[Observation, np.ndarray, np.ndarray]:
    """Simulate B placements of groups and describe their schedules.

    Args:
        batch: the instances.
        index: (B,) int64, instance of each episode.
        placement: (B, G) int64, device of each group.
        visited: (B, G) bool, groups already moved in this sweep.
        steps: (B,) int64, moves made so far.

    Returns:
        What is seen, makespans (B,) in microseconds and memory overflows (B,).
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
    instances = tuple(batch.instances[i] for i in index)
    seen = Observation(
        node=node,
        pair=pair,
        arcs=np.concatenate([i.pairs + f for i, f in zip(instances, first, strict=False)], 1),
        edge=edge,
        first=first,
        of=of,
        local=local,
        current=placement[of, local],
        marked=marked,
        exists=np.arange(devices)[None] < batch.num_devices[index][of][:, None],
        traversal=np.concatenate([i.traversal for i in instances]),
        instances=instances,
    )
    return seen, makespan, overflow


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
