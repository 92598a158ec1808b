"""Finds the best number of micro-batches: the step is placed in several numbers of them, then in the best one again.

With more micro-batches, more devices of a pipeline can work at the same time. With fewer, ops stay large. Which number
is best depends on the model, the batch, the cluster and the placement. So the only way to know it is to place the step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from placeto.heuristics.local_search.starts import DEFAULT_SIMULATIONS
from placeto.problem.problem import PlacementProblem
from placeto.simulator.evaluator import PlacementResult

COUNTS = (1, 2, 4, 8, 16)
"""Numbers of micro-batches that are tried, as far as they divide the batch."""
LEAST = 30
"""Simulations for each number at least, of which a third compare the numbers."""
_FIRST = 1 / 3  # of the budget, for all numbers together; the best of them gets the rest


class MicroBatchingError(ValueError):
    """A budget that is too small to compare numbers of micro-batches; the message says what would do."""


Place = Callable[[PlacementProblem, int | None, float | None], PlacementResult]
"""Places a problem within a budget of simulations or seconds."""


@dataclass(frozen=True)
class Chosen:
    """The best number of micro-batches and its placement, and what all numbers came to."""

    count: int
    result: PlacementResult
    first: dict[int, PlacementResult]  # what each number came to with its share of the budget
    left_out: dict[int, str]  # why a number could not be captured or placed


def place_in_best(
    problem_of: Callable[[int], PlacementProblem],
    place: Place,
    simulations: int | None = None,
    seconds: float | None = None,
) -> Chosen:
    """Place a step in each number of `COUNTS` with equal shares of a third of a budget, then in the best with the rest.

    Args:
        problem_of: the step in so many micro-batches, on the cluster.
        place: a placer. What it needs to be made ready is no part of its seconds.
        simulations: budget of all together, at least `LEAST` for each number; 1,000 where there is none at all.
        seconds: likewise.

    Raises:
        CaptureError: the step can't be captured, not even in one part. Numbers that it can't be split into, and those
            above one that the placer refuses, are left out.
        MicroBatchingError: too few simulations to compare the numbers.
    """
    from placeto.capture.errors import CaptureError  # torch takes seconds

    if simulations is None and seconds is None:
        simulations = DEFAULT_SIMULATIONS
    problems, left_out = {}, {}
    for count in COUNTS:
        try:
            problems[count] = problem_of(count)
        except CaptureError as refused:
            if count == 1:
                raise
            left_out[count] = str(refused)
    if simulations is not None and simulations < LEAST * len(problems):
        raise MicroBatchingError(
            f"{simulations} simulations are too few to compare {len(problems)} numbers of micro-batches: "
            f"give at least {LEAST * len(problems)}, or say how many micro-batches to use"
        )
    share, spent, took = _FIRST / len(problems), 0, 0.0
    first: dict[int, PlacementResult] = {}
    for count, problem in problems.items():
        counted = None if simulations is None else int(simulations * share)
        try:
            found = place(problem, counted, None if seconds is None else seconds * share)
        except ValueError as refused:
            if count == 1 or not type(refused).__module__.startswith("placeto."):
                raise
            left_out[count] = str(refused)
            continue
        first[count] = _after(found, spent, took)
        spent, took = spent + found.simulations, took + found.seconds
    count = min(first, key=lambda each: (not first[each].fits, first[each].makespan_us))
    counted = None if simulations is None else simulations - spent
    again = place(problems[count], counted, None if seconds is None else seconds * (1 - _FIRST))
    spent, took, again = spent + again.simulations, took + again.seconds, _after(again, spent, took)
    best = min(again, first[count], key=lambda each: (not each.fits, each.makespan_us))
    return Chosen(count, replace(best, simulations=spent, seconds=took), first, left_out)


def _after(result: PlacementResult, simulations: int, seconds: float) -> PlacementResult:
    """A result whose history counts what other numbers have spent before."""
    history = tuple((simulations + count, seconds + at, us) for count, at, us in result.history)
    return replace(result, history=history)
