"""Every placer where memory is short: on graphs that no single device holds, that hardly fit, and that don't."""

import itertools

import numpy as np
import pytest

from placeto.heuristics import HEURISTICS
from placeto.heuristics.exact.exact_placer import solve
from placeto.placers import load_family
from placeto.problem.grouping import expand, group_ops
from placeto.problem.problem import PlacementProblem
from placeto.simulator.evaluator import PlacementResult
from placeto.simulator.schedule import simulate
from tests.cases import chain, devices, hourglass
from tests.toys import toy_cluster

LOOKS_AT_ONE = {"single"}
"""These never use a second device."""
SEARCHES = [name for name in ("random", "hillclimb", "ils", "anneal", "multilevel", "exact") if name in HEURISTICS]
"""These use what budget they get, so they are to find what is there."""
names = pytest.mark.parametrize("name", HEURISTICS)


SPREAD = {
    "two devices": (chain(*[100] * 12, output=10), devices(900, 900)),
    "four devices": (chain(*[100] * 12, output=10), devices(400, 400, 400, 400)),
    "modules": (chain(*[100] * 12, output=10, modules=True), devices(900, 900)),
    # equal shares of the work don't fit
    "unequal ops": (chain(700, 100, 100, 100, 300, 300, 50, 50, output=5), devices(1000, 1000)),
    "tensors only": (hourglass(8, 100), devices(600, 600)),
    "one large device": (chain(*[100] * 10, output=5), devices(800, 300, 300)),
    "fast and small": (chain(*[100] * 10, output=5), devices(300, 900, speeds=(4.0, 1.0))),
    "tiny devices": (chain(*[100] * 10, output=5), devices(900, 450, 50, 20)),
    "one home for the largest": (chain(100, 100, 900, 100, output=5), devices(300, 1000, 300)),
}
"""Devices of which no one holds all parameters, with some room to spare."""

TIGHT = {
    "one way": (chain(90, 60, 40, 30), devices(120, 100), 1),
    "two ways": (chain(70, 50, 50, 30), devices(100, 100), 2),
    "one way on three": (chain(70, 60, 50, 40, 30), devices(110, 80, 60), 1),
}
"""With the number of placements that fit: every byte of every device is needed."""

IMPOSSIBLE = {
    "too much in all": (chain(50, 50, 50, 50, 50), devices(100, 100)),
    "no packing": (chain(60, 60, 60), devices(100, 100)),
    "one op too large": (chain(10, 1000, 10), devices(100, 100, 500)),
}


def place(name: str, problem: PlacementProblem, simulations: int | None = None) -> PlacementResult:
    """The result, which must say of itself what the simulator says."""
    simulations = simulations or (1000 if name == "random" else 300)
    result = HEURISTICS[name](problem, simulations=simulations, seed=0)
    schedule = result.schedule()
    assert result.makespan_us == schedule.makespan_us
    assert result.fits == schedule.fits == bool((schedule.peak_memory <= problem.cluster.memory).all())
    assert result.simulations <= simulations
    return result


def ways(problem: PlacementProblem) -> int:
    """How many placements of groups fit."""
    groups = group_ops(problem)
    rows = itertools.product(range(problem.num_devices), repeat=groups.num_groups)
    return sum(simulate(problem, expand(groups, np.array(row))).fits for row in rows)


@pytest.mark.parametrize("case", SPREAD)
@names
def test_what_no_device_holds_is_spread(name: str, case: str) -> None:
    problem = PlacementProblem(*SPREAD[case])
    assert place(name, problem).fits == (name not in LOOKS_AT_ONE)


@pytest.mark.parametrize("case", TIGHT)
@pytest.mark.parametrize("name", SEARCHES)
def test_the_only_placements_that_fit_are_found_by_search(name: str, case: str) -> None:
    graph, cluster, count = TIGHT[case]
    problem = PlacementProblem(graph, cluster)
    assert ways(problem) == count
    assert place(name, problem).fits


@pytest.mark.parametrize("case", IMPOSSIBLE)
@names
def test_what_fits_nowhere_is_said(name: str, case: str) -> None:
    assert not place(name, PlacementProblem(*IMPOSSIBLE[case])).fits


@pytest.mark.parametrize("case", IMPOSSIBLE)
def test_exact_proves_that_nothing_fits(case: str) -> None:
    result, bound = solve(PlacementProblem(*IMPOSSIBLE[case]))
    assert (result.fits, bound) == (False, np.inf)


def test_exact_keeps_a_budget_that_is_less_than_its_equal_placements() -> None:
    for case in SPREAD.values():
        place("exact", PlacementProblem(*case), simulations=2)


@pytest.mark.parametrize("name", [name for name in HEURISTICS if name != "exact"])  # which would take long
def test_training_steps_that_no_device_holds(name: str) -> None:
    """Four devices with half of the memory each that the graph takes on one."""
    graph = load_family("nmt").load("validation", 0)
    peak = simulate(PlacementProblem(graph, toy_cluster(1)), np.zeros(graph.num_ops, np.int64)).peak_memory[0]
    problem = PlacementProblem(graph, devices(*[int(peak) // 2] * 4))
    assert place(name, problem, simulations=200).fits == (name not in LOOKS_AT_ONE)
