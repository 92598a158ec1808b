"""The evaluator of placers: it simulates placements within a budget of simulations or seconds, and keeps the best.

Legend: N ops, G groups, D devices, B placements of a batch.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from hashlib import sha256

import numpy as np

from placeto.problem.grouping import Groups, expand, group_ops
from placeto.problem.problem import PlacementProblem
from placeto.problem.step.plan import Plan
from placeto.simulator.memory import penalised
from placeto.simulator.observer import current
from placeto.simulator.result import PlacementResult as PlacementResult
from placeto.simulator.result import as_listed
from placeto.simulator.schedule import simulate, simulate_batch

_CHUNK_SECONDS = 0.02  # aimed duration of a chunk


@dataclass(frozen=True, eq=False)
class _Best:
    """The best placement of those that were scored; the defaults mean that there is none."""

    dispatch: str  # dispatch under which it was scored
    placement: np.ndarray | None = None  # (N,)
    key: tuple[bool, float] = (True, math.inf)  # (exceeds memory, penalised makespan)
    makespan_us: float = math.inf
    order: np.ndarray | None = None  # (N,) order under which it was scored; None = by dispatch


class Evaluator:
    """Scores placements within a budget, and keeps the best: those that fit come first, then those of least score.

    Scores are penalised makespans in microseconds: makespan x (1 + `MEMORY_PENALTY` x memory overflow). When the budget
    is spent, scores are `math.inf` and nothing is simulated. Without limits the budget is never spent.

    Seconds count from `began` and include the grouping of the ops. A step that has begun is not stopped: grouping or
    splitting groups, placing by a rule, or a simulation. So a placer may end late by the rest of one such step.

    Args:
        problem: the problem whose placements are scored.
        groups: groups of its ops; None = those of `group_ops`.
        simulations: the most simulations; None = no limit.
        seconds: the most seconds; None = no limit.
        began: the value of `time.perf_counter` when the placer began; None = now.

    >>> from placeto import ComputationGraph, load_cluster
    >>> graph = ComputationGraph.from_ops("two", [{"name": n, "time_us": {"*": 5.0}} for n in "ab"])
    >>> problem = PlacementProblem(graph, load_cluster("2xp100"))
    >>> evaluator = Evaluator(problem, simulations=1)
    >>> evaluator.score(np.array([0, 1])), evaluator.score(np.array([0, 0])), evaluator.exhausted
    (10.0, inf, True)

    Raises:
        ValueError: the budget is negative or not finite.
    """

    def __init__(
        self,
        problem: PlacementProblem,
        groups: Groups | None = None,
        simulations: int | None = None,
        seconds: float | None = None,
        began: float | None = None,
    ) -> None:
        self._begin = time.perf_counter() if began is None else began
        if simulations is not None and simulations < 0:
            raise ValueError(f"simulations must be >= 0, not {simulations}")
        if seconds is not None and not (math.isfinite(seconds) and seconds >= 0):
            raise ValueError(f"seconds must be finite and >= 0, not {seconds}")
        self.problem = problem
        self.groups = groups = group_ops(problem) if groups is None else groups
        self.limit = simulations
        self.seconds_limit = seconds
        self._whole, self._observer = (simulations, seconds), current()
        self.simulations = 0
        self.last_fits = False  # whether the last placement that was scored fits
        self._absorbed = 0.0  # seconds at the end of the last `absorb`
        self.pace = 0.0  # seconds per simulation of the last chunk; 0 before the first one
        self._largest = 0  # simulations of the largest chunk
        self._best = _Best(problem.dispatch)
        self._plans: dict[bytes, Plan] = {}  # by the digest of its placement
        self._best_groups: np.ndarray | None = None  # (G,)
        self._best_groups_score = math.inf
        self._history: list[tuple[int, float, float]] = []

    @property
    def seconds(self) -> float:
        """Seconds since the placer began."""
        return time.perf_counter() - self._begin

    @property
    def remaining(self) -> float:
        """Simulations left; inf if there is no limit, 0 if the time is up or the observer ends the placer."""
        if self.seconds_limit is not None and self.seconds >= self.seconds_limit:
            return 0
        if self._observer is not None and self._observer.has_enough(self._spent(*self._whole)):
            return 0
        return math.inf if self.limit is None else self.limit - self.simulations

    @property
    def exhausted(self) -> bool:
        """Whether the budget is spent."""
        return self.remaining <= 0

    @property
    def expected(self) -> float:
        """Simulations left, at the pace of the last chunk if seconds are limited; inf if there is no limit."""
        if self.seconds_limit is None or self.pace == 0.0:
            return self.remaining
        return min(self.remaining, max(0.0, self.seconds_limit - self.seconds) / self.pace)

    def next_chunk(self, most: int) -> int:
        """Return the size of the next chunk, at most `most` simulations and within the budget: 0 if it is spent.

        The clock is read between chunks only. With a limit in seconds, the first chunk is one simulation. No chunk is
        more than twice the largest before it, and none is expected to take longer than 0.02 s or than the time left.
        """
        count = int(max(0, min(most, self.remaining)))
        if self.seconds_limit is None or count <= 1:
            return count
        seconds = min(_CHUNK_SECONDS, self.seconds_limit - self.seconds)
        return max(1, int(min(count, seconds / self.pace if self.pace > 0.0 else 1.0, 2 * self._largest)))

    def took(self, count: int, seconds: float) -> None:
        """Record that a chunk of `count` simulations took `seconds`."""
        self.pace, self._largest = seconds / count, max(self._largest, count)

    @contextmanager
    def limited(self, simulations: int | None, seconds: float | None) -> Iterator[None]:
        """Lower the limits for the block. Like the budget, they count from when the placer began."""
        limits = self.limit, self.seconds_limit
        if simulations is not None:
            self.limit = simulations if self.limit is None else min(simulations, self.limit)
        if seconds is not None:
            self.seconds_limit = seconds if self.seconds_limit is None else min(seconds, self.seconds_limit)
        try:
            yield
        finally:
            self.limit, self.seconds_limit = limits

    @contextmanager
    def limited_to(self, share: float) -> Iterator[None]:
        """Limit the block to a share of the simulations and of the time that are left."""
        simulations = seconds = None
        if self.limit is not None:
            simulations = self.simulations + math.ceil(share * (self.limit - self.simulations))
        if self.seconds_limit is not None:
            seconds = self.seconds + share * max(0.0, self.seconds_limit - self.seconds)
        with self.limited(simulations, seconds):
            yield

    @contextmanager
    def anew(self) -> Iterator[None]:
        """Begin without a best placement for the block. Afterwards, the best of those before and within is the best."""
        before, history = self._best, self._history
        self._best, self._history = _Best(before.dispatch), []
        try:
            yield
        finally:
            if before.placement is not None and before.key <= self._best.key:
                self._best, self._history = before, history
            elif before.placement is not None:
                self._history = [*history, self._history[-1]]

    def reorder(self, dispatch: str) -> None:
        """Score under another dispatch from now on, and score `best_groups` again under it.

        The best placement keeps its score, and the dispatch under which it was scored.
        """
        if dispatch == self.problem.dispatch:
            return
        self.problem = self.problem.under(dispatch)
        if (groups := self._best_groups) is not None:
            self._best_groups, self._best_groups_score = None, math.inf
            self.score(groups)

    @property
    def progress(self) -> float:
        """Share of the budget that is spent, from 0 to 1; 0 if there is no limit."""
        return self._spent(self.limit, self.seconds_limit)

    def _spent(self, limit: int | None, seconds: float | None) -> float:
        parts = [0.0]
        if limit is not None:
            parts.append(self.simulations / limit if limit else 1.0)
        if seconds is not None:
            parts.append(self.seconds / seconds if seconds else 1.0)
        return min(1.0, max(parts))

    @property
    def best_fits(self) -> bool:
        """Whether the best placement so far fits; False if there is none."""
        return self._best.placement is not None and not self._best.key[0]

    @property
    def best(self) -> np.ndarray | None:
        """(N,) best placement so far; None if there is none."""
        return self._best.placement

    @property
    def best_dispatch(self) -> str:
        """Dispatch under which the best placement so far was scored."""
        return self._best.dispatch

    @property
    def best_score(self) -> float:
        """Penalised makespan of the best placement so far, in microseconds; inf if there is none."""
        return self._best.key[1]

    @property
    def best_groups(self) -> tuple[np.ndarray, float]:
        """(G,) best placement so far that keeps groups together, and its penalised makespan; all 0 and inf if none."""
        if self._best_groups is None:
            return np.zeros(self.groups.num_groups, np.int64), math.inf
        return self._best_groups, self._best_groups_score

    def regroup(self, parts: Groups) -> None:
        """Replace the groups; `best_groups` becomes the best known placement that keeps the new groups together."""
        alike = self._best.order is None and self._best.dispatch == self.problem.dispatch
        candidates = [(self._best.placement, self._best.key[1])] if alike else []
        if self._best_groups is not None:
            candidates.append((self._best_groups[self.groups.group], self._best_groups_score))
        self.groups, self._best_groups, self._best_groups_score = parts, None, math.inf
        for placement, us in candidates:
            if placement is not None and self._best_groups is None:
                per_group = placement[parts.first_op]
                if np.array_equal(per_group[parts.group], placement):
                    self._best_groups, self._best_groups_score = per_group, us

    @contextmanager
    def confined(self, problem: PlacementProblem, devices: Sequence[int]) -> Iterator[Evaluator]:
        """Yield an evaluator of `problem`, made by `on_devices(self.problem, devices)`, which spends this one's budget.

        Afterwards this evaluator has the other's groups and, if it is better, the other's best placement.
        """
        device_of = np.array(devices)
        inner = Evaluator(problem, self.groups, self.limit, self.seconds_limit, self._begin)
        inner.simulations, inner._whole, inner._absorbed = self.simulations, self._whole, self.seconds
        inner.pace = self.pace
        if self.best is not None and np.isin(self.best, device_of).all():
            inner._best = replace(self._best, placement=np.searchsorted(device_of, self.best))
        if self._best_groups is not None and np.isin(self._best_groups, device_of).all():
            inner._best_groups = np.searchsorted(device_of, self._best_groups)
            inner._best_groups_score = self._best_groups_score
        yield inner
        self.simulations, self._absorbed = inner.simulations, inner._absorbed
        if inner.best is not None and (self.best is None or inner._best.key < self._best.key):
            better = [point for point in inner._history[:-1] if point[2] < self._best.makespan_us]
            self._history += [*better, inner._history[-1]]
            self._best = replace(inner._best, placement=device_of[inner.best])
        if inner.groups is not self.groups:
            self.regroup(inner.groups)
        if inner._best_groups is not None and inner._best_groups_score < self._best_groups_score:
            self._best_groups, self._best_groups_score = device_of[inner._best_groups], inner._best_groups_score

    def score(self, group_placement: np.ndarray) -> float:
        """Penalised makespan of a placement (G,) of groups, in microseconds; inf if the budget is spent.

        Raises:
            PlacementError: an entry is no device of the cluster.
            ValueError: the placement doesn't have one device for each group.
        """
        return self.score_ops(expand(self.groups, group_placement))

    def score_ops(self, placement: np.ndarray, order: np.ndarray | None = None) -> float:
        """Penalised makespan in microseconds of a placement (N,) of ops, with an `order` (N,) as in `simulate`.

        Raises:
            PlacementError: there isn't one device of the cluster for each op; or the order contradicts the graph.
        """
        return float(self._score_rows(np.asarray(placement)[None], order)[0])

    def score_plan(self, plan: Plan, placement: np.ndarray, order: np.ndarray | None = None) -> float:
        """Score the placement (N,) of a plan as `score_ops` does; if it is the best, the result has the plan."""
        self.note_plan(plan, placement)
        return self.score_ops(placement, order)

    def note_plan(self, plan: Plan, placement: np.ndarray) -> None:
        """Note the plan whose placement (N,) it is: if it is the best, the result has the plan."""
        self._plans[sha256(np.asarray(placement, np.int64).tobytes()).digest()] = plan

    def score_batch(self, group_placements: np.ndarray) -> np.ndarray:
        """Penalised makespans (B,) in microseconds of placements (B, G) of groups; inf for those beyond the budget.

        Raises:
            PlacementError: an entry is no device of the cluster.
            ValueError: a placement doesn't have one device for each group.
        """
        return self._score_rows(expand(self.groups, group_placements))

    def absorb(
        self,
        placement: np.ndarray,
        makespan_us: float,
        overflow: float,
        simulations: int,
        improvements: Sequence[tuple[int, float, float]] = (),
    ) -> None:
        """Record the best placement (N,) of a compiled search, and the simulations that it made.

        `improvements` are (how many of these simulations were made, makespan_us, overflow) of each improvement in the
        search. Their seconds are interpolated. Those that are not better than the best before the search are left out.
        """
        better, key = [], self._best.key
        for count, us, over in improvements:
            if _key(us, over) < key:
                better.append((count, us))
                key = _key(us, over)
        begin = max(self._absorbed, self._history[-1][1] if self._history else 0.0)
        self._absorbed = now = self.seconds
        before = len(self._history)
        start = self.simulations
        self.simulations += simulations
        self._offer(placement, makespan_us, overflow)
        if better and len(self._history) > before:
            self._history[before:] = [
                (start + count, begin + (now - begin) * count / simulations, makespan) for count, makespan in better
            ]

    def result(self) -> PlacementResult:
        """Return the best placement; if nothing was scored, all ops on the device that is fastest with them.

        Simulating the latter to describe it doesn't count.
        """
        best, order, problem = self._best, self._best.order, self.problem.under(self._best.dispatch)
        plan = None if best.placement is None else self._plans.get(sha256(best.placement.tobytes()).digest())
        if best.placement is None:
            schedule = simulate(problem, np.full(problem.num_ops, problem.alone_us.argmin()))
            placement, makespan, fits = schedule.placement, schedule.makespan_us, schedule.fits
        else:
            placement, makespan, fits = best.placement, best.makespan_us, not best.key[0]
        if order is not None and len(problem.arrays.lowering):
            order, schedule = as_listed(problem, placement, order)
            makespan, fits = schedule.makespan_us, schedule.fits
        spent = self.simulations, self.seconds, tuple(self._history)
        return PlacementResult(placement, makespan, fits, *spent, problem, order=order, plan=plan)

    def _score_rows(self, placements: np.ndarray, order: np.ndarray | None = None) -> np.ndarray:
        scores, done = np.full(len(placements), math.inf), 0
        while done < len(placements) and (count := self.next_chunk(len(placements) - done)) > 0:
            before, rows = self.seconds, placements[done : done + count]
            makespans, overflows = simulate_batch(self.problem, rows, order)
            scores[done : done + count] = penalised(makespans, overflows)
            for row, makespan, overflow in zip(rows, makespans, overflows, strict=True):
                self.simulations += 1
                self._offer(row, float(makespan), float(overflow), order)
            self.took(count, self.seconds - before)
            done += count
        return scores

    def _offer(
        self, placement: np.ndarray, makespan_us: float, overflow: float, order: np.ndarray | None = None
    ) -> None:
        self.last_fits = overflow == 0
        key = _key(makespan_us, overflow)
        if self.best is None or key < self._best.key:
            self._best = _Best(self.problem.dispatch, np.array(placement, np.int64), key, makespan_us, order)
            self._history.append((self.simulations, self.seconds, makespan_us))
        if order is None and key[1] < self._best_groups_score:
            per_group = np.asarray(placement)[self.groups.first_op]
            if np.array_equal(per_group[self.groups.group], placement):
                self._best_groups, self._best_groups_score = per_group, key[1]
        if self._observer is not None:
            self._observer.look(self._spent(*self._whole), self._best.key)


def _key(makespan_us: float, overflow: float) -> tuple[bool, float]:
    """Sort key of placements, best first: whether memory is exceeded, then the penalised makespan."""
    return overflow > 0, penalised(makespan_us, overflow)
