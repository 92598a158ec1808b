"""Finds the best number of micro-batches: places the step in several numbers of them, then again in the best one.

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
"""Simulations that a budget must have for each number that is tried. A third of them is spent on the comparison."""
_FIRST = 1 / 3  # share of the budget for all numbers together; the best number gets the rest


class MicroBatchingError(ValueError):
    """A budget that is too small to compare numbers of micro-batches; the message says which budget suffices."""


Place = Callable[[PlacementProblem, int | None, float | None], PlacementResult]
"""Places a problem within a budget of simulations or seconds."""


@dataclass(frozen=True)
class Chosen:
    """The best number of micro-batches with its placement, and the first results of all numbers."""

    count: int
    result: PlacementResult
    first: dict[int, PlacementResult]  # of each number, with its share of a third of the budget
    left_out: dict[int, str]  # by number: why the step could not be captured or placed in it


def place_in_best(
    problem_of: Callable[[int], PlacementProblem],
    place: Place,
    simulations: int | None = None,
    seconds: float | None = None,
) -> Chosen:
    """Place a step in each number of `COUNTS` with equal shares of a third of a budget, then in the best with the rest.

    Args:
        problem_of: returns the step in a given number of micro-batches, on the cluster.
        place: places a problem. The time to compile and load its kernels is no part of its seconds.
        simulations: budget of all placements together, at least `LEAST` for each number. It is 1,000 if neither
            `simulations` nor `seconds` is given.
        seconds: budget of all placements together, in seconds.

    Raises:
        CaptureError: the step can't be captured as a whole, in one part. A number above 1 is left out if the step
            can't be captured in it, or if the placer refuses it.
        ValueError: the placer refuses the step as a whole.
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
    """Return a result whose history also counts simulations and seconds that were spent before it."""
    history = tuple((simulations + count, seconds + at, us) for count, at, us in result.history)
    return replace(result, history=history)
