"""What several heuristics share: work and memory of groups, and a second try where a placement exceeds memory.

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
from placeto.simulator.evaluator import Evaluator

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
    """Two estimates (N,) of the bytes that each op occupies during the whole step; cached.

    The first counts the op's parameters alone, since other tensors are freed after their last use. The second, more
    cautious one also counts the op's outputs, or as large a share of all outputs as the cluster has room for.
    """
    resident = problem.resident_bytes.astype(np.float64)
    outputs = op_outputs(problem)
    room = 0.9 * float(problem.cluster.memory.sum()) - resident.sum()
    share = min(1.0, max(0.0, room / max(outputs.sum(), 1.0)))
    return resident, resident + share * outputs


def within_memory(evaluator: Evaluator, place: Callable[[np.ndarray], Made]) -> Iterator[Made]:
    """Yield what `place` makes of the first estimate of `demands`, and of the second if the first one didn't fit.

    The caller scores each result before it takes the next one: `evaluator.last_fits` then says whether it fits.

    Args:
        evaluator: scores; nothing is yielded once its budget is spent.
        place: makes a placement from the bytes (N,) that each op occupies.
    """
    for demand in demands(evaluator.problem):
        if evaluator.exhausted:
            return
        yield place(demand)
        if evaluator.last_fits:
            return


def score_within_memory(evaluator: Evaluator, place: Callable[[np.ndarray], np.ndarray]) -> None:
    """Score the placement (N,) that `place` makes, and a more cautious one if it doesn't fit: see `within_memory`."""
    for placement in within_memory(evaluator, place):
        evaluator.score_ops(placement)


def cut_in_order(order: np.ndarray, work: np.ndarray, demand: np.ndarray, problem: PlacementProblem) -> np.ndarray:
    """Cut groups in `order` (G,) into contiguous parts of equal time, one per device: placement (G,).

    A device's part is in proportion to its speed. It ends early if the next group would exceed the device's memory; the
    next device then takes more. The last device takes all that is left, whether or not it fits.

    Args:
        order: (G,) the groups in the order in which they are cut.
        work: (G,) microseconds of each group.
        demand: (G,) bytes of each group.
        problem: has the devices.
    """
    share, memory = problem.speeds, problem.cluster.memory
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
