"""Local searches: what delta estimates say, what is remembered, what moves together, and where each gets."""

import itertools
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy.stats import spearmanr

from graphs import FAMILIES
from placeto.environment.instance import InstanceBatch, make_instance
from placeto.environment.observation import score_moves
from placeto.heuristics import HEURISTICS, SEARCHES
from placeto.heuristics.local_search import local_search
from placeto.heuristics.local_search.annealing import MIX, annealing_of_parts
from placeto.heuristics.local_search.delta_estimate import estimate, new_scratch
from placeto.heuristics.local_search.descents import CLIMBING
from placeto.heuristics.local_search.local_search import LocalSearch
from placeto.heuristics.local_search.moves import RANDOM, propose
from placeto.heuristics.local_search.neighbourhood import chains, neighbourhood
from placeto.heuristics.local_search.starts import begin, best_cheap
from placeto.problem.cluster import load_cluster
from placeto.problem.costs import ROOFLINE
from placeto.problem.graph import ComputationGraph
from placeto.problem.grouping import group_ops
from placeto.problem.problem import PlacementProblem
from placeto.simulator import evaluator, kernel
from placeto.simulator.evaluator import Evaluator
from placeto.simulator.schedule import simulate
from placeto.simulator.slack import fill_slack
from placeto.simulator.timelines import timelines
from tests.heuristics.test_heuristics import forks, random_cluster, random_graph
from tests.heuristics.test_memory_limits import chain, devices


def guess(problem: PlacementProblem, device: np.ndarray) -> np.ndarray:
    """(G, D) the delta estimate of each move of one group; 0 for staying."""
    groups, flat = group_ops(problem), problem.arrays
    near = neighbourhood(problem, groups)
    placement = device[groups.group]
    scratch = new_scratch(flat, near)
    makespan, sends = kernel.run(flat, 0, placement, scratch.record, np.inf)
    fill_slack(flat, 0, placement, scratch.record, sends, makespan, scratch.op_slack, scratch.send_slack)
    timelines(flat, 0, placement, scratch.record, sends, scratch.line_ptr, scratch.line)
    table = np.zeros((groups.num_groups, problem.num_devices))
    for group, target in np.ndindex(table.shape):
        if target != device[group]:
            table[group, target] = estimate(flat, near, placement, scratch, group, target)
    return table


def test_delta_estimates_prefer_the_idle_device() -> None:
    problem = forks(3, 4, "4xv100")
    groups = group_ops(problem)
    device = np.zeros(groups.num_groups, np.int64)
    device[[name.startswith("c0") for name in np.array(problem.graph.op_names)[np.argsort(groups.group)]]] = 1
    table = guess(problem, device)
    first = groups.group[problem.graph.op_names.index("c1:0")]
    assert table[first, 2] < table[first, 1]  # device 1 is busy with c0, device 2 idle
    assert table[first, 2] == table[first, 3]


def test_delta_estimates_rank_moves_like_the_simulator() -> None:
    correlations = []
    for seed in range(12):
        rng = np.random.default_rng(seed)
        problem = PlacementProblem(random_graph(rng, 60), random_cluster(rng, 3))
        groups, devices = group_ops(problem).num_groups, problem.num_devices
        device = rng.integers(devices, size=groups)
        batch = InstanceBatch.of([make_instance(problem)])
        group, target = np.repeat(np.arange(groups), devices), np.tile(np.arange(devices), groups)
        exact = score_moves(batch, np.zeros(1, np.int64), device[None], group[None], target[None])[0]
        moves = target != device[group]
        correlations.append(spearmanr(guess(problem, device).ravel()[moves], exact[moves]).statistic)
    assert np.mean(correlations) > 0.3, correlations


def test_chains_are_runs_of_only_children() -> None:
    """a -> b -> c splits into d -> e and f, which join in g -> h."""
    inputs = {"a": "", "b": "a", "c": "b", "d": "c", "e": "d", "f": "c", "g": "ef", "h": "g"}
    ops = [
        {"name": n, "time_us": {"*": 5.0}, "outputs": [1], "inputs": [[p, 0] for p in ps]} for n, ps in inputs.items()
    ]
    problem = PlacementProblem(ComputationGraph.from_ops("fork", ops), load_cluster("2xp100"))
    groups = group_ops(problem)
    assert groups.num_groups == 8
    letter = dict(zip(groups.group.tolist(), inputs, strict=True))
    assert sorted("".join(letter[g] for g in chain) for chain in chains(problem, groups)) == ["abc", "de", "gh"]


def test_neighbourhood_lists_each_group_in_all_its_sets() -> None:
    problem = PlacementProblem(random_graph(np.random.default_rng(3), 40), load_cluster("2xp100"))
    near = neighbourhood(problem, group_ops(problem))
    for group in range(len(near.op_ptr) - 1):
        entries = range(near.home_ptr[group], near.home_ptr[group + 1])
        assert [near.sets[near.home_place[k]] for k in entries] == [group] * len(entries)
        assert all(near.set_ptr[near.home[k]] <= near.home_place[k] < near.set_ptr[near.home[k] + 1] for k in entries)
        assert (near.sets == group).sum() == len(entries)


def test_of_many_devices_a_group_is_offered_that_of_a_neighbour() -> None:
    """Half of the time; on few devices all are offered alike."""
    shares = []
    for cluster in ("8xh100", "2x8xh100"):
        problem = forks(8, 6, cluster)
        evaluator = Evaluator(problem, simulations=2)
        groups = evaluator.groups.num_groups
        start = np.arange(groups) % problem.num_devices
        search = LocalSearch(evaluator, start, {"random": 1.0}, np.random.default_rng(0))
        near, chosen, target, near_by = search.near, np.zeros(groups, np.int64), np.zeros(groups, np.int64), []
        for _ in range(800):
            marked = np.zeros(groups, bool)
            propose(near, search.state, RANDOM, problem.num_devices, marked, chosen, target)
            around = near.near[near.near_ptr[chosen[0]] : near.near_ptr[chosen[0] + 1]]
            assert target[0] != search.device[chosen[0]]
            near_by.append(target[0] in search.device[around])
        shares.append(np.mean(near_by))
    assert shares[0] < 2.5 / 7
    assert 0.5 < shares[1] < 0.5 + 2.5 / 15


def test_hill_climbing_ends_where_every_move_is_known() -> None:
    problem = forks(2, 2, "2xp100")
    result = HEURISTICS["hillclimb"](problem, simulations=100_000)
    assert result.simulations < 200  # there are 16 placements
    assert result.makespan_us == pytest.approx(problem.single_device_us / 2, rel=0.01)


def test_a_descent_simulates_no_placement_twice() -> None:
    problem = forks(2, 3, "2xp100")  # 64 placements
    evaluator = Evaluator(problem, group_ops(problem), simulations=20_000)
    search = LocalSearch(evaluator, np.zeros(6, np.int64), CLIMBING, np.random.default_rng(0))
    search.run()
    assert 6 < np.count_nonzero(search.state.seen) == evaluator.simulations


def test_annealing_goes_on_where_all_is_known() -> None:
    problem = forks(3, 3, "2xp100")  # 512 placements
    evaluator = Evaluator(problem, group_ops(problem), simulations=20_000)
    search = LocalSearch(evaluator, np.zeros(9, np.int64), MIX, np.random.default_rng(0))
    seen = search.state.seen
    search.run(0.2, 0.2)
    known = np.count_nonzero(seen)
    assert 256 <= known <= 512
    assert evaluator.simulations == 20_000


def test_state_agrees_with_the_simulator_after_any_search() -> None:
    for seed in range(8):
        rng = np.random.default_rng(seed)
        problem = PlacementProblem(random_graph(rng, 30), random_cluster(rng, 3))
        groups = group_ops(problem)
        evaluator = Evaluator(problem, groups, simulations=300)
        search = LocalSearch(evaluator, rng.integers(3, size=groups.num_groups), MIX, rng)
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
        assert (state.score[2], state.score[3]) == (best.makespan_us, best.overflow)


def test_iterated_search_leaves_a_local_optimum() -> None:
    """Two pairs that talk a lot: only moving a whole pair helps, and hill climbing without modules ends before."""
    heavy = 400_000_000
    ops = [
        {"name": f"{pair}{i}", "time_us": {"*": 10_000.0}, "outputs": [heavy],
         "inputs": [[f"{pair}{i - 1}", 0]] if i else []}
        for i in range(3) for pair in "ab"
    ]  # fmt: skip
    problem = PlacementProblem(ComputationGraph.from_ops("pairs", ops), load_cluster("2xp100"))
    evaluator = Evaluator(problem, group_ops(problem), simulations=500)
    LocalSearch(evaluator, np.zeros(6, np.int64), {"random": 1.0}, np.random.default_rng(0)).run()
    assert evaluator.best_score == pytest.approx(problem.single_device_us)
    assert HEURISTICS["ils"](problem, simulations=500).makespan_us == pytest.approx(
        problem.single_device_us / 2, rel=0.01
    )


def test_share_of_worse_moves_is_steered() -> None:
    """Hotter searches accept more; the temperature follows the share that is asked for."""
    problem = forks(6, 5, "4xv100")
    ends = []
    for share in (0.01, 0.3):
        evaluator = Evaluator(problem, group_ops(problem), simulations=3000)
        search = LocalSearch(evaluator, np.zeros(30, np.int64), CLIMBING, np.random.default_rng(0))
        search.run(share, share)
        ends.append(float(search.state.temperature[0]))
    assert ends[1] > 3.0 * ends[0]


@pytest.mark.parametrize("name", SEARCHES)
def test_searches_use_their_budget_and_improve(name: str) -> None:
    problem = forks(4, 6, "4xv100")
    few, many = (HEURISTICS[name](problem, simulations=count, seed=1) for count in (30, 2000))
    assert few.simulations <= 30
    assert many.simulations <= 2000
    assert many.makespan_us <= few.makespan_us
    assert many.makespan_us < 0.3 * problem.single_device_us


def test_multilevel_annealing_splits_groups_where_it_has_simulations_to_spare() -> None:
    problem = PlacementProblem(random_graph(np.random.default_rng(7), 500), load_cluster("4xv100"), ROOFLINE)
    groups = group_ops(problem)
    ends = {}
    for budget in (500, 8000):
        ends[budget] = evaluator = Evaluator(problem, groups, budget)
        start, _ = best_cheap(evaluator)
        annealing_of_parts(evaluator, start, np.random.default_rng(0))
        assert evaluator.simulations == budget
    assert ends[500].groups is groups
    assert ends[8000].groups.num_groups > groups.num_groups == 200
    assert ends[8000].best_score < HEURISTICS["anneal"](problem, simulations=8000).makespan_us
    assert simulate(problem, ends[8000].result().placement).makespan_us == ends[8000].best_score


def test_a_search_begins_where_the_best_placement_op_by_op_is() -> None:
    problem = PlacementProblem(FAMILIES["cifar10"].load("train", 1), load_cluster("2xv100"), ROOFLINE)
    rounded, cut = Evaluator(problem), Evaluator(problem)
    _, grouped = best_cheap(rounded)
    start, score = begin(cut)
    assert cut.best is not None
    assert cut.groups.num_groups > rounded.groups.num_groups
    np.testing.assert_array_equal(start[cut.groups.group], cut.best)
    assert score == simulate(problem, cut.best).makespan_us < grouped


def test_searches_find_the_same_on_any_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a memo so small that proposals of a batch wait for each other, and rejections that are all known."""
    for seed, memo in ((0, 1 << 16), (1, 16), (2, 1)):
        rng = np.random.default_rng(seed)
        problem = PlacementProblem(random_graph(rng, 40), random_cluster(rng, 3))
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
    search = LocalSearch(evaluator, np.zeros(30, np.int64), MIX, np.random.default_rng(0))
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


def test_a_start_that_does_not_fit_is_repaired() -> None:
    """Of the 8 placements one fits, and no cheap placer meets it."""
    problem = PlacementProblem(chain(60, 40, 70), devices(110, 60))
    evaluator = Evaluator(problem, group_ops(problem))
    best_cheap(evaluator)
    assert evaluator.best_fits


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

    def slow_scores(flat: object, placements: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        clock.now += 0.01 * len(placements)
        return np.full(len(placements), 100.0), np.zeros(len(placements))

    def slow_search(*arguments: Any) -> tuple[int, int]:
        simulations = arguments[7]
        clock.now += 0.01 * simulations
        return simulations, 0

    monkeypatch.setattr(evaluator, "scores_of_few", slow_scores)
    monkeypatch.setattr("placeto.heuristics.local_search.local_search.search", slow_search)
    result = HEURISTICS[name](forks(4, 6, "4xv100"), seconds=0.235)
    assert clock.now == pytest.approx(0.24)
    assert result.seconds == clock.now


def test_descents_end_whatever_the_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Patience counts over all looks at the clock, so that iterated search restarts where chunks are small, too."""
    problem = forks(4, 6, "4xv100")
    ends = []
    for chunk in (1000, 16):
        monkeypatch.setattr(local_search, "CHUNK", chunk)
        evaluator = Evaluator(problem, group_ops(problem), simulations=3000)
        search = LocalSearch(evaluator, np.zeros(24, np.int64), {"random": 1.0}, np.random.default_rng(0))
        search.run(patience=72)
        ends.append(evaluator.simulations)
    assert ends[0] < 3000
    assert ends[1] < 3000


def test_starts_solve_small_linear_programs_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of more than 2,000 ops these take seconds; m-SCT itself solves them up to 5,000."""
    sizes: list[int] = []

    def relaxation(time: np.ndarray, *arguments: object) -> None:
        sizes.append(len(time))

    monkeypatch.setattr("placeto.heuristics.baechi._relaxation", relaxation)
    for size in (50, 2001):
        best_cheap(Evaluator(PlacementProblem(random_graph(np.random.default_rng(3), size), load_cluster("4xv100"))))
    assert sizes == [50, 50]
    HEURISTICS["m-sct"](PlacementProblem(random_graph(np.random.default_rng(3), 2001), load_cluster("4xv100")))
    assert sizes == [50, 50, 2001, 2001]
