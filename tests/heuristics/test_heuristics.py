"""Contract of every placer in the table, on small random graphs and uneven clusters."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placeto.heuristics import HEURISTICS
from placeto.problem.cluster import load_cluster
from placeto.problem.grouping import group_ops
from placeto.problem.problem import PlacementProblem
from tests.cases import forks, problem_of, uneven_graph, uneven_problem
from tests.toys import toy_cluster, two_cliques, work

names = pytest.mark.parametrize("name", HEURISTICS)
BUDGETS = st.sampled_from((0, 1, 2, 3, 5)) | st.integers(0, 40)


def check(problem: PlacementProblem, name: str, **budget: float) -> None:
    result = HEURISTICS[name](problem, **budget)
    schedule = result.schedule()
    assert result.makespan_us == schedule.makespan_us
    assert result.fits == schedule.fits
    assert result.makespan_us >= problem.lower_bound_us * (1 - 1e-9)
    if "simulations" in budget:
        assert result.simulations <= budget["simulations"]
    counts = [count for count, _, _ in result.history]
    assert counts == sorted(counts)
    assert not counts or counts[-1] <= result.simulations
    assert not counts or result.history[-1][2] == result.makespan_us
    for colour in set(problem.graph.colocation.tolist()) - {-1}:
        assert len(set(result.placement[problem.graph.colocation == colour].tolist())) == 1


@names
def test_says_what_it_is_in_one_line(name: str) -> None:
    first = (HEURISTICS[name].__doc__ or "").strip().split("\n")[0]
    assert first.endswith(".")
    assert len(first) < 120


@names
@given(seed=st.integers(0, 10**6), ops=st.integers(1, 30), devices=st.integers(1, 5), budget=BUDGETS)
@settings(max_examples=8, deadline=None)
def test_any_graph_on_any_cluster(name: str, seed: int, ops: int, devices: int, budget: int) -> None:
    rng = np.random.default_rng(seed)
    check(uneven_problem(rng, ops, devices), name, simulations=budget, seed=seed)


@names
def test_no_budget_and_seconds(name: str) -> None:
    problem = forks(2, 4, "2xp100")
    check(problem, name)
    check(problem, name, seconds=0.05)
    check(problem, name, seconds=0.0)


@names
def test_same_seed_same_result(name: str) -> None:
    rng = np.random.default_rng(5)
    graph = uneven_graph(rng, 12 if name == "exact" else 40)  # what exact can prove
    results = [
        HEURISTICS[name](PlacementProblem(graph, load_cluster("4xv100")), simulations=100, seed=3) for _ in range(2)
    ]
    assert np.array_equal(results[0].placement, results[1].placement)
    assert results[0].simulations == results[1].simulations
    assert [(s, us) for s, _, us in results[0].history] == [(s, us) for s, _, us in results[1].history]


@pytest.mark.parametrize("name", ["metis", "heft", "etf", "hillclimb", "anneal"])
def test_independent_chains_are_put_apart(name: str) -> None:
    problem = forks(2, 5, "2xp100")
    assert HEURISTICS[name](problem, simulations=200).makespan_us == 5 * 1005.0


@pytest.mark.parametrize("name", ["metis", "hillclimb", "anneal"])
def test_two_cliques_with_a_cheap_edge_are_cut_there(name: str) -> None:
    result = HEURISTICS[name](two_cliques(5), simulations=300)
    assert result.placement.tolist() in ([0] * 5 + [1] * 5, [1] * 5 + [0] * 5)
    assert result.makespan_us == 61.0


def test_fast_device_is_used_by_single_and_fastest() -> None:
    ops = [{"name": name, **work(9.0)} for name in "ab"]
    problem = problem_of(ops, toy_cluster(speeds=(1.0, 2.0)))
    assert HEURISTICS["single"](problem).placement.tolist() == [1, 1]
    assert HEURISTICS["fastest"](problem).placement.tolist() == [1, 1]


def test_placers_keep_groups_together() -> None:
    rng = np.random.default_rng(0)
    problem = PlacementProblem(uneven_graph(rng, 60), load_cluster("2xv100"))
    group = group_ops(problem).group
    for name in ("roundrobin", "expert", "metis", "random"):
        placement = HEURISTICS[name](problem, simulations=3).placement
        assert all(len(set(placement[group == g].tolist())) == 1 for g in range(group.max() + 1))
