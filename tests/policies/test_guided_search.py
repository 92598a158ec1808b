from dataclasses import asdict

import numba
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from placeto.environment.config import EnvConfig
from placeto.environment.instance import InstanceBatch, make_instance
from placeto.environment.observation import score_moves
from placeto.heuristics import HEURISTICS
from placeto.heuristics.local_search.annealing import annealing
from placeto.heuristics.local_search.starts import begin, best_cheap
from placeto.policies.compiled import CompiledPolicy
from placeto.policies.guided_search import GuidedConfig, GuidedPlacer, cheap_starts, guided_placer
from placeto.policies.placeto import PlacetoConfig, PlacetoPolicy
from placeto.problem.grouping import group_ops, join_groups
from placeto.problem.problem import PlacementProblem
from placeto.simulator.evaluator import Evaluator
from placeto.simulator.memory import MEMORY_PENALTY
from placeto.simulator.schedule import simulate
from tests.toys import fork_of_chains, random_graph, toy_cluster


@pytest.fixture(scope="module")
def placer():
    torch.manual_seed(0)
    return GuidedPlacer(CompiledPolicy.of(PlacetoPolicy(PlacetoConfig())), EnvConfig())


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 30), budget=st.integers(0, 60), devices=st.integers(1, 3))
def test_budget_is_kept_and_the_result_is_what_the_simulator_says(placer, seed, budget, devices):
    problem = PlacementProblem(random_graph(seed, 20), toy_cluster(devices))
    result = placer(problem, simulations=budget, seed=seed)
    assert result.simulations <= budget
    assert result.makespan_us == result.schedule().makespan_us
    history = [makespan for _, _, makespan in result.history]
    assert history == sorted(history, reverse=True)


CONSTRUCTIVE = ("single", "fastest", "roundrobin", "expert", "metis", "heft", "etf", "m-topo", "m-etf", "m-sct")


def quality(result):
    """Smaller is better: what fits, then the penalised makespan."""
    overflow = result.schedule().overflow
    return overflow > 0, result.makespan_us * (1.0 + MEMORY_PENALTY * overflow)


@settings(max_examples=10, deadline=None)
@given(
    seed=st.integers(0, 1000), speeds=st.sampled_from([(1.0, 1.0, 1.0), (1.0, 1.5)]), memory=st.sampled_from([9, 4, 2])
)
def test_never_worse_than_a_constructive_heuristic_nor_than_less_budget(placer, seed, speeds, memory):
    """Even with random parameters, and where many placements don't fit."""
    graph = random_graph(seed, 40)
    need = int(graph.output_bytes.sum())
    problem = PlacementProblem(graph, toy_cluster(len(speeds), speeds, max(1, need * memory // 18)))
    cheap = {name: quality(HEURISTICS[name](problem, seed=0)) for name in CONSTRUCTIVE}
    ends = [quality(placer(problem, simulations=budget)) for budget in (0, 300, 1000)]
    for name, end in cheap.items():
        assert max(ends) <= end, name
    assert max(ends[1:]) <= ends[0]


def test_one_pass_takes_a_simulation_a_group_beyond_the_start(placer):
    problem = PlacementProblem(random_graph(1, 30), toy_cluster(2))
    instance = make_instance(problem)
    evaluator = Evaluator(problem, instance.groups)
    best_cheap(evaluator)
    assert placer.one_pass(problem).simulations == evaluator.simulations + instance.groups.num_groups


class Oracle:
    """Knows the change of the makespan by every single move, from simulations."""

    def __init__(self, instance):
        self.batch, self.groups, self.devices = (
            InstanceBatch.of([instance]),
            instance.groups,
            instance.problem.num_devices,
        )

    def __call__(self, node, pair, arcs, edge, current, asked):
        shape = self.groups.num_groups, self.devices
        group, device = (grid.reshape(1, -1) for grid in np.indices(shape))
        scores = score_moves(self.batch, np.zeros(1, np.int64), current[None], group, device)
        return -100.0 * (scores / scores.min() - 1.0).reshape(shape)


class Watched(Evaluator):
    """Remembers what it was asked."""

    def __init__(self, *args):
        super().__init__(*args)
        self.asked = []

    def score(self, group_placement):
        self.asked.append(np.array(group_placement))
        return super().score(group_placement)

    def score_batch(self, group_placements):
        self.asked += [np.array(row) for row in group_placements]
        return super().score_batch(group_placements)


@pytest.mark.parametrize("order", ["policy", "topological"])
def test_a_sweep_moves_each_group_once_at_most(order):
    problem = PlacementProblem(random_graph(1, 30), toy_cluster(3))
    instance = make_instance(problem)
    placer, groups = GuidedPlacer(Oracle(instance), EnvConfig(order=order)), instance.groups.num_groups
    evaluator = Watched(problem, instance.groups)
    start = np.zeros(groups, np.int64)
    here, score = start, evaluator.score(start)
    placer._sweep(instance, 1.0, evaluator, start)
    moved = []
    for placement in evaluator.asked[1:]:
        changed = np.flatnonzero(placement != here)
        assert len(changed) == 1
        moved.append(int(changed[0]))
        if (then := Evaluator(problem).score(placement)) <= score * 1.003:
            here, score = placement, min(score, then)
    assert len(moved) == len(set(moved))
    assert evaluator.best_groups[1] < Evaluator(problem).score(start)
    if order == "policy":  # never stays
        assert len(moved) == groups


def test_a_sweep_of_joined_groups_moves_them_together():
    problem = PlacementProblem(random_graph(1, 60), toy_cluster(3))
    instance = make_instance(problem)
    joined = join_groups(problem, instance.groups, round(0.25 * instance.groups.num_groups))
    placer = GuidedPlacer(Oracle(make_instance(problem, joined)), EnvConfig())
    evaluator = Watched(problem, instance.groups)
    placer._sweep(instance, 0.25, evaluator, np.zeros(instance.groups.num_groups, np.int64))
    assert len(evaluator.asked) == joined.num_groups + 1
    for placement in evaluator.asked:
        ops = placement[instance.groups.group]
        for group in range(joined.num_groups):
            assert len(set(ops[joined.group == group])) == 1


def test_a_pass_ends_with_the_parts_of_groups(placer, monkeypatch):
    """As many simulations as there are groups, four tenths of them on parts."""
    problem = PlacementProblem(random_graph(3, 300), toy_cluster(3))
    swept = []
    sweep = GuidedPlacer._sweep

    def watched(self, instance, share, evaluator, *others):
        before = evaluator.simulations
        sweep(self, instance, share, evaluator, *others)
        swept.append((share, instance.groups.num_groups, evaluator.simulations - before))

    monkeypatch.setattr(GuidedPlacer, "_sweep", watched)
    result = placer.one_pass(problem)
    evaluator = Evaluator(problem)
    begin(evaluator)
    groups = evaluator.groups.num_groups
    assert groups > group_ops(problem).num_groups
    assert result.simulations == evaluator.simulations + groups
    assert result.makespan_us == result.schedule().makespan_us
    joined, whole, parts = swept
    assert joined[:2] == (0.25, groups)
    assert whole[:2] == (1.0, groups)
    assert parts[0] == 1.0
    assert groups < parts[1] <= 4 * groups
    assert parts[2] == pytest.approx(0.4 * groups, abs=1)


def test_at_most_two_moves_are_kept_between_two_looks(placer, monkeypatch):
    """And eight are tried; observing what was simulated before costs nothing."""
    problem = PlacementProblem(random_graph(1, 60), toy_cluster(3))
    instance = make_instance(problem)
    evaluator, looks = Watched(problem, instance.groups), []
    look = GuidedPlacer._likeliest

    def watched(self, *arguments):
        looks.append(len(evaluator.asked))
        return look(self, *arguments)

    monkeypatch.setattr(GuidedPlacer, "_likeliest", watched)
    start = np.zeros(instance.groups.num_groups, np.int64)
    evaluator.score(start)
    placer._sweep(instance, 1.0, evaluator, start)
    best, kept = Evaluator(problem).score(start), []
    for number, placement in enumerate(evaluator.asked[1:], 1):
        score = Evaluator(problem).score(placement)
        best = min(best, score)
        if score <= best * 1.003:
            kept.append(number)
    tried = np.diff([*looks, len(evaluator.asked)])
    per_look = [
        sum(first <= number < first + count for number in kept) for first, count in zip(looks, tried, strict=True)
    ]
    assert max(tried) <= 8
    assert max(per_look) == 2
    assert len(looks) < len(evaluator.asked) / 2


def test_more_moves_are_tried_together_after_some_are_kept_and_fewer_after_some_are_not():
    problem = PlacementProblem(random_graph(1, 90), toy_cluster(3))
    instance = make_instance(problem)
    placer, groups = GuidedPlacer(Oracle(instance), EnvConfig()), instance.groups.num_groups
    evaluator = Watched(problem, instance.groups)
    here = start = np.zeros(groups, np.int64)
    best = evaluator.score(start)
    placer._sweep(instance, 1.0, evaluator, start, 4)
    together, least, done, counts = 4, 4, [], []
    for placement in evaluator.asked[1:]:
        changed = np.flatnonzero(placement != here)
        left = groups - len(done)
        assert min(least, left) <= len(changed) <= min(together, left)
        counts.append(len(changed))
        assert not set(done) & set(changed)
        score = Evaluator(problem).score(placement)
        best = min(best, score)
        if score <= best * 1.003:
            here, together, least = placement, min(2 * together, 32), 1  # a look may know of fewer
            done += list(changed)
        elif len(changed) > 1:
            together = least = len(changed) // 2
        else:
            done += list(changed)
    assert sorted(done) == list(range(groups))
    assert max(counts) >= 8
    assert min(counts) == 1
    assert len(counts) < groups


def test_under_a_clock_every_thread_tries_a_move_and_the_best_of_them_is_kept(monkeypatch):
    monkeypatch.setattr(numba, "get_num_threads", lambda: 3)
    problem = PlacementProblem(random_graph(1, 60), toy_cluster(3))
    instance = make_instance(problem)
    placer, groups = GuidedPlacer(Oracle(instance), EnvConfig()), instance.groups.num_groups
    evaluator = Watched(problem, instance.groups, None, 60.0)
    here = start = np.zeros(groups, np.int64)
    scores = [evaluator.score(start)]
    batches = []
    score_batch = evaluator.score_batch
    evaluator.score_batch = lambda rows: batches.append(rows) or score_batch(rows)
    placer._sweep(instance, 1.0, evaluator, start)
    assert {len(rows) for rows in batches[:-1]} <= {2, 3}  # of the eight after a look
    for rows in batches:
        assert ((rows != here).sum(1) == 1).all()
        then = [Evaluator(problem).score(row) for row in rows]
        scores += then
        if min(then) <= min(scores) * 1.003:
            here = rows[int(np.argmin(then))]
    assert evaluator.best_groups[1] == min(scores)


def test_the_sweeps_leave_annealing_its_share(placer, monkeypatch):
    """They take seven tenths of what the heuristics leave at most."""
    problem = PlacementProblem(random_graph(3, 30), toy_cluster(3))
    evaluator = Evaluator(problem)
    best_cheap(evaluator)
    left = []
    monkeypatch.setattr(
        "placeto.policies.guided_search.anneal_within", lambda evaluator, _: left.append(evaluator.remaining)
    )
    for more in (20, 10**4):
        placer(problem, simulations=evaluator.simulations + more)
        assert 0.3 * more - 1 <= left[-1] < more


def test_groups_are_annealed_before_their_parts_are_swept_and_annealed(placer, monkeypatch):
    problem = PlacementProblem(random_graph(3, 300), toy_cluster(3))
    searched = []

    def anneal_within(evaluator, random):
        searched.append((evaluator.groups.num_groups, evaluator.simulations, evaluator.remaining))
        annealing(evaluator, evaluator.best_groups[0], random)

    monkeypatch.setattr("placeto.policies.guided_search.anneal_within", anneal_within)
    result = placer(problem, simulations=3000)
    (groups, first, share), (parts, second, rest) = searched
    assert groups >= group_ops(problem).num_groups
    assert parts > groups
    assert second > first + share  # the sweep over parts in between
    assert second + rest == result.simulations == 3000


def test_a_policy_of_a_fixed_traversal_keeps_its_budget():
    placer = GuidedPlacer(
        CompiledPolicy.of(PlacetoPolicy(PlacetoConfig())), EnvConfig(order="topological", tolerance=None)
    )
    problem = PlacementProblem(random_graph(3, 30), toy_cluster(3))
    assert placer(problem, simulations=100).simulations == 100


@pytest.mark.parametrize("devices", [1, 3])
def test_without_simulations_the_pass_is_the_answer(placer, devices):
    problem = PlacementProblem(random_graph(4, 30), toy_cluster(devices))
    result = placer(problem, simulations=0)
    assert result.simulations == 0
    assert result.makespan_us == result.schedule().makespan_us
    np.testing.assert_array_equal(result.placement, placer.one_pass(problem).placement)


def test_without_a_budget_it_takes_that_of_the_command(placer):
    problem = PlacementProblem(random_graph(4, 30), toy_cluster(3))
    result = placer(problem)
    assert result.simulations == 1000
    np.testing.assert_array_equal(result.placement, placer(problem, simulations=1000).placement)


def test_same_seed_same_placement(placer):
    problem = PlacementProblem(random_graph(2, 30), toy_cluster(3))
    first, second = (placer(problem, simulations=150, seed=7) for _ in range(2))
    np.testing.assert_array_equal(first.placement, second.placement)
    assert first.simulations == second.simulations


def test_seconds_are_kept(placer):
    problem = PlacementProblem(random_graph(2, 30), toy_cluster(3))
    placer.one_pass(problem)  # compiles
    result = placer(problem, seconds=0.3)
    assert result.seconds < 0.8


def test_the_sweeps_leave_the_search_its_time(placer, monkeypatch):
    """They take a quarter of it, and the step that they are in."""
    problem = PlacementProblem(random_graph(2, 300), toy_cluster(3))
    placer(problem, simulations=1)  # compiles and groups
    left = []
    monkeypatch.setattr(
        "placeto.policies.guided_search.anneal_within", lambda evaluator, _: left.append(evaluator.seconds)
    )
    placer(problem, seconds=2.0)
    assert 0.1 < left[0] < 1.2


def test_search_finds_the_optimum_of_a_fork(placer):
    problem = fork_of_chains(4, 2)
    assert placer(problem, simulations=300).makespan_us == pytest.approx(40.0)


def test_starts_are_sorted_and_scored_as_the_simulator_does():
    problem = PlacementProblem(random_graph(5, 40), toy_cluster(3))
    instance = make_instance(problem)
    starts = cheap_starts(instance)
    assert (np.diff(starts.score) >= 0).all()
    for row, score in zip(starts.placement, starts.score, strict=True):
        schedule = simulate(problem, row[instance.groups.group])
        assert score == pytest.approx(schedule.makespan_us / problem.single_device_us)


def test_a_policy_whose_numbers_overflow_ends_too():
    """It has no likely move then: what the heuristics and annealing find is the result."""
    torch.manual_seed(0)
    policy = PlacetoPolicy(PlacetoConfig())
    for parameter in policy.parameters():
        parameter.data[::2] *= 1e25
    problem = PlacementProblem(random_graph(3, 20), toy_cluster(2))
    instance = make_instance(problem)
    for budget in ({}, {"simulations": 0}, {"simulations": 200}):
        result = GuidedPlacer(CompiledPolicy.of(policy), EnvConfig())(problem, **budget)
        assert result.makespan_us == result.schedule().makespan_us
    evaluator = Evaluator(problem, instance.groups)
    best_cheap(evaluator)
    assert result.makespan_us <= evaluator.best_score


def test_settings_of_the_search_travel_in_the_checkpoint():
    torch.manual_seed(0)
    policy, own = PlacetoPolicy(PlacetoConfig()), GuidedConfig(levels=(0.5, 1.0), tries=3)
    config = {"env": asdict(EnvConfig()), "search": asdict(own)}
    checkpoint = {"best_parameters": policy.state_dict(), "config": config}
    assert guided_placer(checkpoint, policy).search == own
    older = {"best_parameters": policy.state_dict(), "config": {"env": asdict(EnvConfig())}}
    assert guided_placer(older, policy).search == GuidedConfig()
