"""What several heuristics share: work and memory of groups, and retrying within memory.

Legend: N ops, G groups, D devices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import TypeVar

import numpy as np

from placeto.problem.grouping import Groups
from placeto.problem.grouping.coarsening import op_outputs
from placeto.problem.problem import PlacementProblem
from placeto.simulator.evaluator import Evaluator, busy_us

Made = TypeVar("Made")
Rule = Callable[[Evaluator, int], None]
"""Scores one or a few placements of the evaluator's problem; the second argument is a seed."""


def group_times(problem: PlacementProblem, groups: Groups) -> np.ndarray:
    """(G, D) microseconds that each group keeps each device busy, overheads included."""
    time = np.zeros((groups.num_groups, problem.num_devices))
    np.add.at(time, groups.group, problem.busy_us)
    return time


@lru_cache(maxsize=16)
def demands(problem: PlacementProblem) -> tuple[np.ndarray, np.ndarray]:
    """Two estimates (N,) of the bytes that each op needs for good; cached.

    Its parameters alone (tensors come and go); or its outputs too, or as large a share of them as the cluster has room
    for.
    """
    resident = problem.resident_bytes.astype(np.float64)
    outputs = op_outputs(problem)
    room = 0.9 * float(problem.cluster.memory.sum()) - resident.sum()
    share = min(1.0, max(0.0, room / max(outputs.sum(), 1.0)))
    return resident, resident + share * outputs


def within_memory(
    evaluator: Evaluator, place: Callable[[np.ndarray], Made], first: Callable[[], Made] | None = None
) -> Iterator[Made]:
    """What `place` makes, to be scored by the caller; should that not fit, that of the more cautious of `demands`.

    `first` waits for the former, where somebody else makes it.
    """
    for attempt, demand in enumerate(demands(evaluator.problem)):
        if evaluator.exhausted:
            return
        yield place(demand) if attempt or first is None else first()
        if evaluator.last_fits:
            return


def score_within_memory(evaluator: Evaluator, place: Callable[[np.ndarray], np.ndarray]) -> None:
    """Score the placements (N,) of `within_memory`."""
    for placement in within_memory(evaluator, place):
        evaluator.score_ops(placement)


def device_speeds(problem: PlacementProblem) -> np.ndarray:
    """(D,) share of the cluster's speed on this graph, summing to 1."""
    speed = 1.0 / np.maximum(busy_us(problem), 1e-9)
    return speed / speed.sum()


def cut_in_order(order: np.ndarray, work: np.ndarray, demand: np.ndarray, problem: PlacementProblem) -> np.ndarray:
    """Cut groups in `order` (G,) into contiguous parts of equal time, one per device: placement (G,).

    Fast devices get more. A device is left early when the next group's `demand` (bytes) is over its memory, and late
    ones take what is left over.
    """
    share, memory = device_speeds(problem), problem.cluster.memory
    bounds = np.cumsum(share) * work.sum()
    placement, device, done, used = np.zeros(len(order), np.int64), 0, 0.0, 0.0
    for group in order.tolist():
        middle = done + 0.5 * work[group]
        full = used + demand[group] > memory[device] and used > 0
        while device < problem.num_devices - 1 and (middle > bounds[device] or full):
            device, used, full = device + 1, 0.0, False
        placement[group] = device
        done += work[group]
        used += demand[group]
    return placement


def group_sum(groups: Groups, per_op: np.ndarray) -> np.ndarray:
    """(G,) sum over each group's ops of `per_op` (N,)."""
    return np.bincount(groups.group, weights=per_op, minlength=groups.num_groups)
