"""Into how many micro-batches a step is split best: it is placed in several numbers of them, and the best goes on.

More micro-batches let more devices of a pipeline work at the same time, and fewer keep ops large: which number is best
depends on the model, the batch, the cluster and the placement, so that nothing but placing tells.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from placeto.capture.errors import CaptureError
from placeto.heuristics.local_search.starts import DEFAULT_SIMULATIONS
from placeto.problem.problem import PlacementProblem
from placeto.simulator.evaluator import PlacementResult

COUNTS = (1, 2, 4, 8, 16)
"""Numbers of micro-batches that are tried, as far as they divide the batch."""
_FIRST = 1 / 3  # of the budget, for all numbers together; the best of them gets the rest

Place = Callable[[PlacementProblem, int | None, float | None], PlacementResult]
"""Places a problem within a budget of simulations or seconds."""


@dataclass(frozen=True)
class Chosen:
    """The best number of micro-batches and its placement, and what all numbers came to."""

    count: int
    result: PlacementResult
    first: dict[int, PlacementResult]  # what each number came to with its share of the budget
    left_out: dict[int, str]  # why a number was not tried


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
        simulations: budget of all together; 1,000 where there is none at all.
        seconds: likewise.

    Raises:
        CaptureError: the step can't be captured, not even in one part. Numbers that it can't be split into are left
            out.
    """
    if simulations is None and seconds is None:
        simulations = DEFAULT_SIMULATIONS
    problems, left_out = {}, {}
    for count in COUNTS:
        try:
            problems[count] = problem_of(count)
        except CaptureError as problem:
            if count == 1:
                raise
            left_out[count] = str(problem)
    share = _FIRST / len(problems)
    first = {count: place(problem, *_part(simulations, seconds, share)) for count, problem in problems.items()}
    count = min(first, key=lambda each: (not first[each].fits, first[each].makespan_us))
    again = place(problems[count], *_part(simulations, seconds, 1 - _FIRST))
    best = min(again, first[count], key=lambda each: (not each.fits, each.makespan_us))
    spent = [*first.values(), again]
    total = replace(best, simulations=sum(e.simulations for e in spent), seconds=sum(e.seconds for e in spent))
    return Chosen(count, total, first, left_out)


def _part(simulations: int | None, seconds: float | None, share: float) -> tuple[int | None, float | None]:
    return None if simulations is None else int(simulations * share), None if seconds is None else seconds * share
