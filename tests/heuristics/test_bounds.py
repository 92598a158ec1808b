"""No placer beats the proven optimum, nor the lower bound, and no bound of `exact` is above the optimum.

The optimum of `exact` is over placements of groups, so what keeps groups together is compared with it. Placers that
place op by op may be faster: all are compared with the best of all placements that the graph's colocation allows, and
with the lower bound.
"""

import itertools

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from placeto.heuristics import HEURISTICS
from placeto.heuristics.exact.exact_placer import ENUMERATE, solve
from placeto.problem.grouping import expand, group_ops
from placeto.problem.problem import PlacementProblem
from placeto.simulator.schedule import simulate
from tests.cases import uneven_problem

EXACT = 1 - 1e-12
"""Makespans of one schedule may differ in their last bits."""


def optimum(problem: PlacementProblem, group: np.ndarray) -> tuple[float, bool]:
    """Least makespan of placements of the groups of (N,) that fit, and whether any does; else of all of them."""
    best = (True, np.inf)
    for row in itertools.product(range(problem.num_devices), repeat=int(group.max()) + 1):
        schedule = simulate(problem, np.array(row)[group])
        best = min(best, (not schedule.fits, schedule.makespan_us))
    return best[1], not best[0]


problems = given(seed=st.integers(0, 10**6), ops=st.integers(2, 7), devices=st.integers(2, 3), colocated=st.booleans())


@pytest.mark.slow
@problems
@settings(max_examples=12, deadline=None)
def test_no_placer_beats_the_optimum_or_the_lower_bound(seed: int, ops: int, devices: int, colocated: bool) -> None:
    problem = uneven_problem(np.random.default_rng(seed), ops, devices, 0.7 * colocated)
    best, some_fit = optimum(problem, _free(problem))
    for name, placer in HEURISTICS.items():
        result = placer(problem, simulations=150, seed=seed)
        assert result.makespan_us >= problem.lower_bound_us * EXACT, name
        if result.fits:
            assert some_fit, name
            ran = simulate(
                problem, result.placement
            )  # in an order of its own it may be faster, or fit where this doesn't
            assert not ran.fits or ran.makespan_us >= best * EXACT, name
            assert result.makespan_us == ran.makespan_us or result.order is not None, name


@pytest.mark.slow
@problems
@settings(max_examples=12, deadline=None)
def test_exact_is_the_optimum_over_groups(seed: int, ops: int, devices: int, colocated: bool) -> None:
    problem = uneven_problem(np.random.default_rng(seed), ops, devices, 0.7 * colocated)
    groups = group_ops(problem)
    assert devices**groups.num_groups <= ENUMERATE
    best, some_fit = optimum(problem, groups.group)
    result, bound = solve(problem)
    assert result.fits == some_fit
    assert bound >= problem.lower_bound_us * EXACT
    if some_fit:
        assert (result.makespan_us, bound) == (best, best)
    for name, placer in HEURISTICS.items():
        found = placer(problem, simulations=100, seed=seed)
        ran = simulate(problem, found.placement)  # one that fits may do so in an order of its own alone
        if ran.fits and np.array_equal(expand(groups, _devices(groups.group, found.placement)), found.placement):
            assert ran.makespan_us >= result.makespan_us * EXACT, name


@problems
@example(seed=197, ops=3, devices=2, colocated=False)  # a heuristic that splits a group is faster
@settings(max_examples=12, deadline=None)
def test_bounds_by_constraints_never_exceed_the_optimum(seed: int, ops: int, devices: int, colocated: bool) -> None:
    pytest.importorskip("ortools", reason='needs the extra "exact"')
    problem = uneven_problem(np.random.default_rng(seed), ops, devices, 0.7 * colocated)
    groups = group_ops(problem)
    best, some_fit = optimum(problem, groups.group)
    for budget in (1, 40):
        result, bound = solve(problem, simulations=budget, enumerate_up_to=0)
        whole = np.array_equal(expand(groups, _devices(groups.group, result.placement)), result.placement)
        assert bound >= problem.lower_bound_us * EXACT
        if some_fit:
            assert bound <= best * (1 + 2e-5)
            assert result.makespan_us >= best * EXACT or not result.fits or not whole
        else:
            assert not result.fits


def _free(problem: PlacementProblem) -> np.ndarray:
    """(N,) the least groups that a placement must keep together: those that the graph asks for."""
    colour = problem.graph.colocation
    key = np.where(colour >= 0, colour, problem.num_ops + np.arange(problem.num_ops))
    return np.unique(key, return_inverse=True)[1]


def _devices(group: np.ndarray, placement: np.ndarray) -> np.ndarray:
    """(G,) device of one op of each group."""
    return placement[np.unique(group, return_index=True)[1]]
