"""Observations: arrays with named columns, made from problems and schedules of many (graph, placement) pairs at once.

Legend: C instances, B episodes, V nodes (groups) of all episodes together, M arcs between groups, G groups of the
largest graph, D devices of the largest cluster, N ops, L moves.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np

from placeto.environment.columns import EDGE, NODE, PAIR
from placeto.environment.instance import FlatInstance, Instance, InstanceBatch
from placeto.environment.observation_kernel import Situation, describe, describe_moves, situation
from placeto.plumbing.compiling import compiled
from placeto.problem.flat import FlatProblem
from placeto.simulator import kernel, memory
from placeto.simulator.lowering import lowered
from placeto.simulator.memory import penalised
from placeto.simulator.schedule import PARALLEL_OPS
from placeto.simulator.slack import fill_slack
from placeto.simulator.threads import in_parts, threads

SERIAL_LOOK = 10_000
"""Below this number of ops x devices, `look` uses one thread, which is faster than several."""
_PARTS = 4  # with several threads, `look` divides the groups into this number of parts for each thread


@dataclass(frozen=True, eq=False)
class Observation:
    """The features of B episodes, one after another."""

    node: np.ndarray  # (V, node features) float32
    pair: np.ndarray  # (V, D, pair features) float32
    arcs: np.ndarray  # (2, M) int64, from which node to which
    edge: np.ndarray  # (M, edge features) float32
    first: np.ndarray  # (B+1,) int64, first node of each episode
    of: np.ndarray  # (V,) int64, episode of each node
    local: np.ndarray  # (V,) int64, group within the episode
    current: np.ndarray  # (V,) int64, device
    marked: np.ndarray  # (V,) bool, visited
    offered: np.ndarray  # (V, D) bool, devices that the node is offered, its own among them
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
        The observation, makespans (B,) in microseconds, and memory overflows (B,).
    """
    observation = _empty(batch, index, placement, visited, steps)
    placement = np.ascontiguousarray(placement, np.int64)
    arc_first = np.concatenate([[0], np.cumsum(batch.num_pairs[index])])
    makespan, overflow = np.empty(len(index)), np.empty(len(index))

    def observe_rows(begin: int, end: int) -> None:
        for b, instance in enumerate(observation.instances[begin:end], begin):
            nodes, arcs = slice(*observation.first[b : b + 2]), slice(*arc_first[b : b + 2])
            makespan[b], overflow[b] = _observe_one(
                instance.problem.arrays,
                instance.arrays,
                placement[b],
                observation.node[nodes],
                observation.pair[nodes],
                observation.edge[arcs],
                observation.offered[nodes],
            )

    ops = sum(instance.problem.num_ops for instance in observation.instances)
    in_parts(observe_rows, len(index), ops >= PARALLEL_OPS)
    return observation, makespan, overflow


def look(batch: InstanceBatch, placement: np.ndarray, visited: np.ndarray) -> Observation:
    """Observe one placement, without its memory overflow, to choose the next move.

    Groups that were visited already are offered no moves.


    Args:
        batch: a batch of one instance.
        placement: (G,) int64, device of each group.
        visited: (G,) bool, groups already moved in this sweep.
    """
    steps = visited.sum()
    observation = _empty(batch, np.zeros(1, np.int64), placement[None], visited[None], steps[None])
    (instance,) = batch.instances
    flat, devices = instance.problem.arrays, int(batch.num_devices[0])
    arrays = observation.node, observation.pair, observation.edge, observation.offered
    described = _look(flat, instance.arrays, np.ascontiguousarray(placement, np.int64), ~visited, *arrays)
    several = len(flat.resident) * devices >= SERIAL_LOOK
    parts = _PARTS * threads() if several else 1
    in_parts(partial(_describe_parts, described, observation.offered, observation.pair, parts), parts, several)
    return observation


def _empty(
    batch: InstanceBatch, index: np.ndarray, placement: np.ndarray, visited: np.ndarray, steps: np.ndarray
) -> Observation:
    """Make an observation with all that doesn't depend on schedules; all other arrays are 0 or False."""
    sizes, arcs = batch.num_groups[index], batch.num_pairs[index]
    first = np.concatenate([[0], np.cumsum(sizes)])
    devices = int(batch.num_devices[index].max())
    episode = np.repeat(np.arange(len(index)), sizes)
    local = np.arange(first[-1]) - first[episode]
    marked = visited[episode, local]
    node = np.zeros((first[-1], len(NODE)), np.float32)
    node[:, NODE.visited] = marked
    node[:, NODE.steps_left] = (1.0 - (steps % sizes) / sizes)[episode]
    instances = tuple(batch.instances[i] for i in index)
    return Observation(
        node=node,
        pair=np.zeros((first[-1], devices, len(PAIR)), np.float32),
        arcs=np.concatenate([i.pairs + f for i, f in zip(instances, first, strict=False)], 1),
        edge=np.zeros((arcs.sum(), len(EDGE)), np.float32),
        first=first,
        of=episode,
        local=local,
        current=np.asarray(placement, np.int64)[episode, local],
        marked=marked,
        offered=np.zeros((first[-1], devices), bool),
        traversal=np.concatenate([i.traversal for i in instances]),
        instances=instances,
    )


def score_moves(
    batch: InstanceBatch, index: np.ndarray, placement: np.ndarray, group: np.ndarray, device: np.ndarray
) -> np.ndarray:
    """Penalised makespans (B, L), in microseconds, after each of L single moves from each of B placements.

    Args:
        batch: the instances.
        index: (B,) int64, instance of each placement.
        placement: (B, G) int64, device of each group.
        group: (B, L) int64, which group moves.
        device: (B, L) int64, device that it moves to. If it is below 0, nothing is simulated and the result is NaN.
    """
    makespan, overflow = np.full(group.shape, np.nan), np.zeros(group.shape)
    placement, group, device = (np.ascontiguousarray(array, np.int64) for array in (placement, group, device))
    for b, number in enumerate(index.tolist()):
        problem, arrays = batch.instances[number].problem, batch.instances[number].arrays
        work = partial(_score_moves, problem.arrays, arrays.group, placement[b], group[b], device[b])
        several = group.shape[1] * problem.num_ops >= PARALLEL_OPS
        in_parts(partial(work, makespan[b], overflow[b]), group.shape[1], several)
    return penalised(makespan, overflow)


@compiled()
def _score_moves(
    flat: FlatProblem,
    group_of: np.ndarray,
    placement: np.ndarray,
    group: np.ndarray,
    device: np.ndarray,
    makespan: np.ndarray,
    overflow: np.ndarray,
    first: int,
    last: int,
) -> None:
    for m in range(first, last):
        if device[m] < 0:
            continue
        ops = np.empty(len(group_of), np.int64)
        for i in range(len(group_of)):
            ops[i] = device[m] if group_of[i] == group[m] else placement[group_of[i]]
        makespan[m], overflow[m] = memory.score(flat, ops, np.inf)


@compiled(inner=True)
def _on_ops(group: np.ndarray, placement: np.ndarray) -> np.ndarray:
    """(N,) int64, device of each op, whose groups are `group` (N,), in a placement of groups."""
    ops = np.empty(len(group), np.int64)
    for i in range(len(group)):
        ops[i] = placement[group[i]]
    return ops


@compiled(inner=True, inline="always")
def _describe(
    flat: FlatProblem,
    instance: FlatInstance,
    schedule: tuple[np.ndarray, kernel.Record, float, int],
    asked: np.ndarray,
    node: np.ndarray,
    pair: np.ndarray,
    edge: np.ndarray,
    offered: np.ndarray,
) -> Situation:
    """Fill the columns of one placement, but for those of `describe_moves`; returns the situation for these.

    `schedule` is the devices of the ops (N,), the record, the makespan in us, and the number of sends.
    """
    ops, record, span, num_sends = schedule
    low, place = lowered(flat, ops)
    op_slack, send_slack = np.empty(len(place)), np.empty(num_sends)
    fill_slack(low, place, record, num_sends, span, op_slack, send_slack)
    described = situation(flat, instance, ops, record, num_sends, span, op_slack)
    describe(described, instance.single_us[0], instance.lower_bound_us[0], asked, node, pair, edge, offered)
    return described


@compiled()
def _observe_one(
    flat: FlatProblem,
    instance: FlatInstance,
    placement: np.ndarray,
    node: np.ndarray,
    pair: np.ndarray,
    edge: np.ndarray,
    offered: np.ndarray,
) -> tuple[float, float]:
    """Simulate one placement and fill its columns; returns its makespan in us and its memory overflow."""
    ops, record = _on_ops(instance.group, placement), kernel.new_record(flat)
    makespan, overflow, num_sends = memory.run_and_measure(flat, ops, record, np.inf)
    schedule, asked = (ops, record, makespan, num_sends), np.ones(len(node), np.bool_)
    described = _describe(flat, instance, schedule, asked, node, pair, edge, offered)
    describe_moves(described, offered, pair, np.int64(0), np.int64(1))  # no literals, see `compiled`
    return makespan, overflow


@compiled()
def _look(
    flat: FlatProblem,
    instance: FlatInstance,
    placement: np.ndarray,
    asked: np.ndarray,
    node: np.ndarray,
    pair: np.ndarray,
    edge: np.ndarray,
    offered: np.ndarray,
) -> Situation:
    """Simulate one placement and fill its columns, but for those of `describe_moves`."""
    ops, record = _on_ops(instance.group, placement), kernel.new_record(flat)
    low, place = lowered(flat, ops)
    span, num_sends = kernel.run(low, place, record, np.inf)
    schedule = ops, record, span, num_sends
    return _describe(flat, instance, schedule, asked, node, pair, edge, offered)


@compiled()
def _describe_parts(s: Situation, offered: np.ndarray, pair: np.ndarray, parts: int, first: int, last: int) -> None:
    """Run `describe_moves` for the parts from `first` to before `last` of `parts`."""
    for part in range(first, last):
        describe_moves(s, offered, pair, part, parts)
