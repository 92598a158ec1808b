"""Numbers of micro-batches: the step in several of them, and a placement in the best one.

With more micro-batches, more devices of a pipeline can work at the same time. With fewer, ops stay large. Which number
is best depends on the model, the batch, the cluster and the placement. So the only way to know it is to place the step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from placeto.errors import CaptureError, PlacerError, PlacetoError, PlanError
from placeto.heuristics.local_search.starts import DEFAULT_SIMULATIONS
from placeto.problem.cluster import Cluster
from placeto.problem.costs import CostModel
from placeto.problem.costs.group_costs import in_groups
from placeto.problem.graph import ComputationGraph
from placeto.problem.problem import PlacementProblem
from placeto.simulator.evaluator import PlacementResult

COUNTS = (1, 2, 4, 8, 16)
"""Numbers of micro-batches that are tried, as far as they divide the batch."""
LEAST = 30
"""Simulations that a budget must have for each number that is tried. A third of them is spent on the comparison."""
MOST_OPS = 200_000
"""A step with more ops is large: its pipelines are searched by their chunks alone."""
_FIRST = 1 / 3  # share of the budget for all numbers together; the best number gets the rest


Setting = tuple[int, int]
"""Width and number of micro-batches of a step."""
ProblemOf = Callable[[int], PlacementProblem]
"""Returns a step in a given number of micro-batches, on the cluster; a CaptureError says why it can't be split so."""
GraphOf = Callable[[int, int, int], ComputationGraph]
"""Returns a step in a given number of micro-batches, with a given number of samples, in groups of a given width."""
Place = Callable[[PlacementProblem, int | None, float | None], PlacementResult]
"""Places a problem within a budget of simulations or seconds."""


def is_large(problem: PlacementProblem, count: int) -> bool:
    """Whether a step that is captured in some number of micro-batches is large in `count` of them."""
    return problem.num_ops / problem.graph.num_micro_batches * count > MOST_OPS


def problems_on(graph_of: GraphOf, batch: int, cluster: Cluster, costs: CostModel) -> Callable[..., PlacementProblem]:
    """Return what makes the problem of a step on a cluster, from the number of micro-batches.

    It may also take another number of samples than `batch`, and the width of tensor-parallel groups.
    """

    def problem_of(count: int, samples: int = batch, width: int = 1) -> PlacementProblem:
        groups = in_groups(cluster, costs, width)
        return PlacementProblem(graph_of(count, samples, width), *groups)

    return problem_of


class Numbers:
    """A step in several numbers of micro-batches. It is captured in each of them once, when it is first wanted."""

    def __init__(self, problem_of: ProblemOf) -> None:
        self._problem_of = problem_of
        self._refused = dict[int, CaptureError]()
        self.problems = dict[int, PlacementProblem]()

    def __call__(self, count: int) -> PlacementProblem:
        """Return the step in a number of micro-batches.

        Raises:
            CaptureError: the step can't be captured in this number.
        """
        if count in self._refused:
            raise self._refused[count]
        if count not in self.problems:
            try:
                self.problems[count] = self._problem_of(count)
            except CaptureError as refused:
                self._refused[count] = refused
                raise
        return self.problems[count]

    def wanted(self, counts: Iterable[int]) -> Iterator[tuple[int, PlacementProblem]]:
        """Yield those of some numbers in which the step can be captured, and the step in them.

        Raises:
            CaptureError: the step can't be captured in any number that was wanted so far; it is the first refusal.
            PlanError: no number was wanted so far.
        """
        for count in dict.fromkeys(counts):
            try:
                problem = self(count)
            except CaptureError:
                continue
            yield count, problem
        if not self.problems:
            raise next(iter(self._refused.values()), PlanError("no number of micro-batches: give at least one"))

    @property
    def left_out(self) -> dict[int, str]:
        """Numbers of micro-batches that the step can't be split into, and why."""
        return {count: str(refused) for count, refused in self._refused.items()}


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
