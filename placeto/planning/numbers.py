"""A placement of a step in the best number of micro-batches."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from placeto.errors import PlacerError, PlacetoError
from placeto.heuristics.local_search.starts import DEFAULT_SIMULATIONS
from placeto.problem.problem import PlacementProblem
from placeto.simulator.evaluator import PlacementResult

LEAST = 30
"""Simulations that a budget must have for each number that is tried. A third of them is spent on the comparison."""
_FIRST = 1 / 3  # share of the budget for all numbers together; the best number gets the rest

Place = Callable[[PlacementProblem, int | None, float | None], PlacementResult]
"""Places a problem within a budget of simulations or seconds."""


@dataclass(frozen=True)
class Chosen:
    """The best number of micro-batches with its placement, and the first results of all numbers."""

    count: int
    result: PlacementResult
    first: dict[int, PlacementResult]  # of each number, with its share of a third of the budget
    left_out: dict[int, str]  # by number: why the step could not be placed in it
    way: str = ""  # name of the way of `placeto plan` that was taken in place of the placer's placement


def place_in_best(
    problems: Mapping[int, PlacementProblem],
    place: Place,
    simulations: int | None = None,
    seconds: float | None = None,
) -> Chosen:
    """Place a step in each number of micro-batches with equal shares of a third of a budget, then in the best one.

    The best number gets the rest of the budget. If there is only one, it gets all of it.

    Args:
        problems: the step, by its number of micro-batches.
        place: places a problem. The time to compile and load its kernels is no part of its seconds.
        simulations: budget of all placements together, at least `LEAST` for each number. It is 1,000 if neither
            `simulations` nor `seconds` is given.
        seconds: budget of all placements together, in seconds.

    Raises:
        ValueError: the placer refuses the step in the first number. Others that it refuses are left out.
        PlacerError: too few simulations to compare the numbers.
    """
    if simulations is None and seconds is None:
        simulations = DEFAULT_SIMULATIONS
    if len(problems) == 1:
        ((count, problem),) = problems.items()
        return Chosen(count, result := place(problem, simulations, seconds), {count: result}, {})
    if simulations is not None and simulations < LEAST * len(problems):
        raise PlacerError(
            f"{simulations} simulations are too few to compare {len(problems)} numbers of micro-batches: "
            f"give at least {LEAST * len(problems)}, or say how many micro-batches to use"
        )
    share, spent, took = _FIRST / len(problems), 0, 0.0
    first, left_out = dict[int, PlacementResult](), dict[int, str]()
    for count, problem in problems.items():
        counted = None if simulations is None else int(simulations * share)
        try:
            placed = place(problem, counted, None if seconds is None else seconds * share)
        except ValueError as refused:
            if not first or not isinstance(refused, PlacetoError):
                raise
            left_out[count] = str(refused)
            continue
        first[count] = _after(placed, spent, took)
        spent, took = spent + placed.simulations, took + placed.seconds
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
