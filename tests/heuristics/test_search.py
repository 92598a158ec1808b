"""Local searches: what is remembered, what moves together, and where each gets."""

import itertools
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from graphs import FAMILIES
from placeto.heuristics import HEURISTICS, SEARCHES
from placeto.heuristics.local_search import local_search
from placeto.heuristics.local_search.local_search import LocalSearch
from placeto.heuristics.local_search.multilevel import v_cycles
from placeto.heuristics.local_search.neighbourhood import chains
from placeto.heuristics.local_search.starts import begin, best_cheap
from placeto.problem.cluster import load_cluster
from placeto.problem.costs import ROOFLINE
from placeto.problem.grouping import group_ops
from placeto.problem.problem import PlacementProblem
from placeto.simulator import evaluator
from placeto.simulator.evaluator import Evaluator
from placeto.simulator.schedule import simulate
from tests.cases import forks, problem_of, toy_problem, uneven_problem


def test_chains_are_runs_of_only_children() -> None:
    """a -> b -> c splits into d -> e and f, which join in g -> h."""
    inputs = {"a": "", "b": "a", "c": "b", "d": "c", "e": "d", "f": "c", "g": "ef", "h": "g"}
    ops = [
        {"name": n, "time_us": {"*": 5.0}, "outputs": [1], "inputs": [[p, 0] for p in ps]} for n, ps in inputs.items()
    ]
    problem = problem_of(ops, "2xp100")
    groups = group_ops(problem)
    assert groups.num_groups == 8
    letter = dict(zip(groups.group.tolist(), inputs, strict=True))
    assert sorted("".join(letter[g] for g in chain) for chain in chains(problem, groups)) == ["abc", "de", "gh"]


def test_hill_climbing_ends_where_every_move_is_known() -> None:
    problem = forks(2, 2, "2xp100")
    result = HEURISTICS["hillclimb"](problem, simulations=100_000)
    assert result.simulations < 200  # there are 16 placements
    assert result.makespan_us == pytest.approx(problem.single_device_us / 2, rel=0.01)


def test_a_descent_simulates_no_placement_twice() -> None:
    problem = forks(2, 3, "2xp100")  # 64 placements
    evaluator = Evaluator(problem, group_ops(problem), simulations=20_000)
    search = LocalSearch(evaluator, np.zeros(6, np.int64), np.random.default_rng(0))
    search.run()
    assert 6 < np.count_nonzero(search.state.seen) == evaluator.simulations


def test_state_agrees_with_the_simulator_after_any_search() -> None:
    for seed in range(8):
        rng = np.random.default_rng(seed)
        problem = uneven_problem(rng, 30, 3)
        groups = group_ops(problem)
        evaluator = Evaluator(problem, groups, simulations=300)
        search = LocalSearch(evaluator, rng.integers(3, size=groups.num_groups), rng)
        search.run(0.1, 0.01)
        state, schedule = search.state, simulate(problem, search.device[groups.group])
        np.testing.assert_array_equal(state.placement, schedule.placement)
        assert search.score == pytest.approx(schedule.makespan_us * (1.0 + 10.0 * schedule.overflow))
        salts = state.salt[np.arange(groups.num_groups), state.device]
        assert state.hash[0] == np.bitwise_xor.reduce(salts)
        tight = (schedule.slack_us <= 1e-9 * schedule.makespan_us) & (
            problem.op_time[np.arange(problem.num_ops), schedule.placement] > 0.0
        )
        assert set(state.critical[: state.num_critical[0]].tolist()) == set(groups.group[tight].tolist())
        best = simulate(problem, state.best)
        assert (state.best_makespan[0], state.best_overflow[0]) == (best.makespan_us, best.overflow)


@pytest.mark.parametrize("name", SEARCHES)
def test_searches_use_their_budget_and_improve(name: str) -> None:
    problem = forks(4, 6, "4xv100")
    few, many = (HEURISTICS[name](problem, simulations=count, seed=1) for count in (30, 2000))
    assert few.simulations <= 30
    assert many.simulations <= 2000
    assert many.makespan_us <= few.makespan_us
    assert many.makespan_us < 0.3 * problem.single_device_us


def test_v_cycles_move_parts_of_groups() -> None:
    problem = toy_problem(7, 500, 4)
    evaluator = Evaluator(problem, None, 8000)
    best_cheap(evaluator)
    groups = evaluator.groups.num_groups
    v_cycles(evaluator, np.random.default_rng(0))
    assert evaluator.simulations == 8000
    assert evaluator.groups.num_groups > groups == 200
    assert evaluator.best_score < HEURISTICS["anneal"](problem, simulations=8000).makespan_us
    assert simulate(problem, evaluator.result().placement).makespan_us == evaluator.best_score


def test_a_search_begins_where_the_best_placement_op_by_op_is() -> None:
    problem = PlacementProblem(FAMILIES["cifar10"].load("train", 1), load_cluster("2xv100"), ROOFLINE)
    rounded, cut = Evaluator(problem), Evaluator(problem)
    _, grouped = best_cheap(rounded)
    begin(cut)
    start, score = cut.best_groups
    assert cut.best is not None
    assert cut.groups.num_groups > rounded.groups.num_groups
    np.testing.assert_array_equal(start[cut.groups.group], cut.best)
    assert score == simulate(problem, cut.best).makespan_us < grouped


def test_searches_find_the_same_on_any_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a memo so small that proposals of a batch wait for each other, and rejections that are all known."""
    for seed, memo in ((0, 1 << 16), (1, 16), (2, 1)):
        rng = np.random.default_rng(seed)
        problem = uneven_problem(rng, 40, 3)
        monkeypatch.setattr(local_search, "MEMO", memo)
        monkeypatch.setattr(local_search, "KNOWN", 20)
        for method in ("anneal", "hillclimb", "ils"):
            found = []
            for threads in (1, 2, 3):
                monkeypatch.setattr(local_search, "threads", lambda number=threads: number)
                result = HEURISTICS[method](problem, simulations=600, seed=seed)
                history = [(count, us) for count, _, us in result.history]
                found.append((result.placement.tobytes(), result.simulations, history))
            assert found[0] == found[1] == found[2]
            assert len(found[0][2]) > 2, "nothing was found"


def test_a_search_that_is_interrupted_lets_its_threads_go(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = forks(6, 5, "4xv100")
    monkeypatch.setattr(local_search, "threads", lambda: 2)
    evaluator = Evaluator(problem, group_ops(problem), simulations=50)
    search = LocalSearch(evaluator, np.zeros(30, np.int64), np.random.default_rng(0))
    compiled = local_search.search

    def interrupted(*arguments: Any) -> tuple[int, int]:
        if arguments[-2] > 0:
            return compiled(*arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(local_search, "search", interrupted)
    with pytest.raises(KeyboardInterrupt):
        search.run(0.1, 0.01)
    helper = local_search.pool("search", 1).submit(lambda: True)
    assert helper.result(timeout=20)


@pytest.mark.parametrize("name", SEARCHES)
def test_time_that_is_up_between_two_looks_at_the_clock(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock goes on by one second at each look, so that some limit is reached at each of them."""
    problem = forks(2, 2, "2xv100")
    for seconds in range(1, 120):
        monkeypatch.setattr(evaluator, "time", SimpleNamespace(perf_counter=partial(next, itertools.count())))
        HEURISTICS[name](problem, seconds=float(seconds))


@pytest.mark.parametrize("name", SEARCHES)
def test_searches_end_late_by_a_simulation_at_most(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Time goes on by 10 ms a simulation: 0.235 s are enough for 23 simulations and a 24th that ends late."""
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(evaluator, "time", SimpleNamespace(perf_counter=lambda: clock.now))

    def slow_scores(problem: object, placements: np.ndarray, order: object) -> tuple[np.ndarray, np.ndarray]:
        clock.now += 0.01 * len(placements)
        return np.full(len(placements), 100.0), np.zeros(len(placements))

    def slow_search(*arguments: Any) -> tuple[int, int]:
        simulations = arguments[5].simulations
        clock.now += 0.01 * simulations
        return simulations, 0

    monkeypatch.setattr("placeto.heuristics.warm_up", lambda *_: None)  # which places a small graph once a process
    monkeypatch.setattr(evaluator, "simulate_batch", slow_scores)
    monkeypatch.setattr("placeto.heuristics.local_search.local_search.search", slow_search)
    result = HEURISTICS[name](forks(4, 6, "4xv100"), seconds=0.235)
    assert clock.now == pytest.approx(0.24)
    assert result.seconds == clock.now
