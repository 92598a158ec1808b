"""What every placer shares: the result, and the budget of simulations or seconds it must keep.

Legend: N ops, G groups, D devices, B placements of a batch.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from placeto._memory import score
from placeto.cost import PlacementProblem, ProblemBatch
from placeto.grouping import Groups
from placeto.simulator import check_placement, simulate, simulate_batch

_PARALLEL = 16  # waking the threads takes as long as a few simulations, and milliseconds on a busy machine
MEMORY_PENALTY = 10.0
"""Makespans are multiplied by 1 + this x the sum over devices of max(0, peak - memory) / memory."""


@dataclass(frozen=True, eq=False)
class PlacementResult:
    """The best placement that a placer found, and what finding it took."""

    placement: np.ndarray  # (N,) int64, device of each op
    makespan_us: float  # what `simulate` gives for it
    fits: bool  # no device exceeds its memory
    simulations: int
    seconds: float
    history: tuple[tuple[int, float, float], ...]  # (simulations, seconds, makespan_us) of each improvement


class Evaluator:
    """Scores placements within a budget and keeps the best: one that fits rather than not, then the least makespan.

    Once the budget is spent, scores are `math.inf` and nothing is simulated. With neither limit it never is.
    Scores are penalised makespans in microseconds: makespan x (1 + `MEMORY_PENALTY` x memory overflow).

    >>> from placeto import ComputationGraph, load_cluster
    >>> from placeto.grouping import group_ops
    >>> graph = ComputationGraph.from_ops("two", [{"name": n, "time_us": {"*": 5.0}} for n in "ab"])
    >>> problem = PlacementProblem(graph, load_cluster("2xp100"))
    >>> evaluator = Evaluator(problem, group_ops(problem), simulations=1)
    >>> evaluator.score(np.array([0, 1])), evaluator.score(np.array([0, 0])), evaluator.exhausted
    (10.0, inf, True)

    Raises:
        ValueError: a negative or non-finite budget.
    """

    def __init__(
        self,
        problem: PlacementProblem,
        groups: Groups,
        simulations: int | None = None,
        seconds: float | None = None,
    ) -> None:
        if simulations is not None and simulations < 0:
            raise ValueError(f"simulations must be >= 0, not {simulations}")
        if seconds is not None and not (math.isfinite(seconds) and seconds >= 0):
            raise ValueError(f"seconds must be finite and >= 0, not {seconds}")
        self.problem = problem
        self.groups = groups
        self.limit = simulations
        self.seconds_limit = seconds
        self.simulations = 0
        self.last_fits = False  # whether the last placement that was scored is within memory
        self._absorbed = 0.0  # seconds at the end of the last `absorb`
        self._batch = ProblemBatch((problem,), problem.arrays)
        self._begin = time.perf_counter()
        self._best: np.ndarray | None = None  # (N,)
        self._best_key = (True, math.inf)  # (exceeds memory, penalised makespan)
        self._best_makespan = math.inf
        self._best_groups: np.ndarray | None = None  # (G,)
        self._best_groups_score = math.inf
        _, self._first_op = np.unique(groups.group, return_index=True)  # (G,) one op of each group
        self._history: list[tuple[int, float, float]] = []

    @property
    def seconds(self) -> float:
        """Seconds since the evaluator was made."""
        return time.perf_counter() - self._begin

    @property
    def remaining(self) -> float:
        """Simulations left; inf if they are not limited, 0 if the time is up."""
        if self.seconds_limit is not None and self.seconds >= self.seconds_limit:
            return 0
        return math.inf if self.limit is None else self.limit - self.simulations

    @property
    def exhausted(self) -> bool:
        """Whether the budget is spent."""
        return self.remaining <= 0

    @property
    def progress(self) -> float:
        """Fraction of the budget that is spent, in [0, 1]; 0 if there is none."""
        parts = [0.0]
        if self.limit is not None:
            parts.append(self.simulations / self.limit if self.limit else 1.0)
        if self.seconds_limit is not None:
            parts.append(self.seconds / self.seconds_limit if self.seconds_limit else 1.0)
        return min(1.0, max(parts))

    @property
    def best_fits(self) -> bool:
        """Whether the best placement so far is within memory; False if there is none."""
        return self._best is not None and not self._best_key[0]

    @property
    def best(self) -> np.ndarray | None:
        """(N,) best placement so far."""
        return self._best

    @property
    def best_score(self) -> float:
        """Penalised makespan of the best placement so far, in microseconds; inf if there is none."""
        return self._best_key[1]

    @property
    def best_groups(self) -> tuple[np.ndarray, float]:
        """(G,) best placement so far that keeps groups together, and its penalised makespan; else all 0, and inf."""
        if self._best_groups is None:
            return np.zeros(self.groups.num_groups, np.int64), math.inf
        return self._best_groups, self._best_groups_score

    def score(self, group_placement: np.ndarray) -> float:
        """Penalised makespan of a placement (G,) of groups, in microseconds.

        Raises:
            PlacementError: not one device of the cluster per group.
        """
        return self.score_ops(np.asarray(group_placement)[self.groups.group])

    def score_ops(self, placement: np.ndarray) -> float:
        """Penalised makespan of a placement (N,) of ops, in microseconds.

        Raises:
            PlacementError: not one device of the cluster per op.
        """
        return float(self._score_rows(np.asarray(placement)[None])[0])

    def score_batch(self, group_placements: np.ndarray) -> np.ndarray:
        """Penalised makespans (B,) of placements (B, G) of groups; inf for those beyond the budget.

        Raises:
            PlacementError: not one device of the cluster per group.
        """
        return self._score_rows(np.asarray(group_placements)[:, self.groups.group])

    def absorb(
        self,
        placement: np.ndarray,
        makespan_us: float,
        overflow: float,
        simulations: int,
        improvements: Sequence[tuple[int, float]] = (),
    ) -> None:
        """Take over what a compiled search found in `simulations` more: its best placement (N,).

        `improvements` are (simulation of these, makespan_us); their seconds are interpolated.
        """
        if self.best_fits:  # the search began from something worse, or from what doesn't fit
            better: list[tuple[int, float]] = []  # the last one first
            for count, us in reversed(improvements):
                if us < self._best_makespan and (not better or us > better[-1][1]):
                    better.append((count, us))
            improvements = better[::-1]
        begin = max(self._absorbed, self._history[-1][1] if self._history else 0.0)
        self._absorbed = now = self.seconds
        before = len(self._history)
        start = self.simulations
        self.simulations += simulations
        self._offer(placement, makespan_us, overflow)
        if improvements and len(self._history) > before:
            self._history[before:] = [
                (start + count, begin + (now - begin) * count / simulations, makespan)
                for count, makespan in improvements
            ]

    def result(self) -> PlacementResult:
        """The best placement scored; where nothing was, the best single device.

        The fallback's schedule is worked out only to describe it, and is not counted.
        """
        if self._best is None:
            schedule = simulate(self.problem, np.full(self.problem.num_ops, busy_us(self.problem).argmin()))
            placement, makespan, fits = schedule.placement, schedule.makespan_us, schedule.fits
        else:
            placement, makespan, fits = self._best, self._best_makespan, not self._best_key[0]
        return PlacementResult(placement, makespan, fits, self.simulations, self.seconds, tuple(self._history))

    def _score_rows(self, placements: np.ndarray) -> np.ndarray:
        scores = np.full(len(placements), math.inf)
        count = int(min(len(placements), max(0, self.remaining)))
        if count == 0:
            for row in placements[:1]:
                check_placement(self.problem, row)
            return scores
        if count < _PARALLEL:
            arrays, rows = self.problem.arrays, [check_placement(self.problem, row) for row in placements[:count]]
            makespans, overflows = np.array([score(arrays, 0, row, math.inf) for row in rows]).T
        else:
            makespans, overflows = simulate_batch(self._batch, np.zeros(count, np.int64), placements[:count])
        scores[:count] = makespans * (1.0 + MEMORY_PENALTY * overflows)
        for row in range(count):
            self.simulations += 1
            self._offer(placements[row], float(makespans[row]), float(overflows[row]))
        return scores

    def _offer(self, placement: np.ndarray, makespan_us: float, overflow: float) -> None:
        self.last_fits = overflow == 0
        key = (overflow > 0, makespan_us * (1.0 + MEMORY_PENALTY * overflow))
        if self._best is None or key < self._best_key:
            self._best = np.array(placement, np.int64)
            self._best_key, self._best_makespan = key, makespan_us
            self._history.append((self.simulations, self.seconds, makespan_us))
        if key[1] < self._best_groups_score:
            per_group = np.asarray(placement)[self._first_op]
            if np.array_equal(per_group[self.groups.group], placement):
                self._best_groups, self._best_groups_score = per_group, key[1]


def busy_us(problem: PlacementProblem) -> np.ndarray:
    """(D,) microseconds that each device would be busy with the whole graph, overheads included."""
    return (problem.op_time + np.where(problem.op_time > 0, problem.cluster.overhead_us, 0.0)).sum(axis=0)
