import numba
import numpy as np
import pytest
import torch

from placeto.environment.config import EnvConfig
from placeto.environment.instance import InstanceBatch, make_instance
from placeto.environment.observation import score_moves
from placeto.heuristics.local_search.annealing import annealing
from placeto.policies.compiled import CompiledPolicy
from placeto.policies.guided_search import GuidedPlacer
from placeto.policies.nesting import Nest
from placeto.policies.placeto import PlacetoConfig, PlacetoPolicy
from placeto.policies.sweeps import GuidedConfig, Sweeper
from placeto.problem.grouping import join_groups
from placeto.problem.problem import PlacementProblem
from placeto.simulator.evaluator import Evaluator
from tests.toys import random_graph, toy_cluster

NOT_ROUNDED = GuidedConfig(rounded_to=1.0)


@pytest.fixture(scope="module")
def placer():
    torch.manual_seed(0)
    return GuidedPlacer(CompiledPolicy.of(PlacetoPolicy(PlacetoConfig())), EnvConfig())


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
    own, groups = GuidedConfig(patience=1.0), instance.groups.num_groups
    placer = GuidedPlacer(Oracle(instance), EnvConfig(order=order), own)
    evaluator = Watched(problem, instance.groups)
    start = np.zeros(groups, np.int64)
    here, score = start, evaluator.score(start)
    placer.sweeper.sweep_level(instance, 1.0, evaluator)
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


def test_a_sweep_of_joined_groups_begins_where_the_search_stands_and_moves_them_together():
    problem = PlacementProblem(random_graph(1, 60), toy_cluster(3))
    instance = make_instance(problem)
    groups = instance.groups.num_groups
    start = np.random.default_rng(0).integers(3, size=groups)
    nest = Nest(problem, instance.groups)
    (clusters,) = nest.joined(start, [round(0.5 * groups)])
    count = clusters.max() + 1
    assert count < groups
    placer = GuidedPlacer(Oracle(make_instance(problem, nest.groups_of(clusters))), EnvConfig())
    evaluator = Watched(problem, instance.groups)
    evaluator.score(start)
    placer.sweeper.sweep_level(instance, 0.5, evaluator)
    assert len(evaluator.asked) == count + 1
    for placement in evaluator.asked:
        assert all(len(set(placement[clusters == cluster])) == 1 for cluster in range(count))


def test_a_sweep_over_all_levels_tries_no_move_twice_and_moves_what_stands_on_one_device():
    problem = PlacementProblem(random_graph(1, 90), toy_cluster(3))
    instance = make_instance(problem)
    groups = instance.groups.num_groups
    torch.manual_seed(0)
    policy = CompiledPolicy.of(PlacetoPolicy(PlacetoConfig()))
    placer = GuidedPlacer(policy, EnvConfig(), NOT_ROUNDED)
    evaluator = Watched(problem, instance.groups, 1000)
    here = start = np.random.default_rng(0).integers(3, size=groups)
    best = evaluator.score(start)
    placer.sweeper.sweep(instance, evaluator)
    tried, sizes = set(), set()
    for placement in evaluator.asked[1:]:
        changed = np.flatnonzero(placement != here)
        assert len(set(here[changed])) == len(set(placement[changed])) == 1
        move = changed.tobytes(), int(placement[changed[0]])
        assert move not in tried
        tried.add(move)
        sizes.add(len(changed))
        score = Evaluator(problem).score(placement)
        best = min(best, score)
        if score <= best * 1.003:
            here = placement
    assert len(evaluator.asked) == 1 + np.ceil(1.25 * groups)
    assert min(sizes) == 1
    assert max(sizes) > 4
    assert evaluator.best_groups[1] == best


def test_the_policys_best_move_of_any_level_is_tried_first():
    """An oracle of all levels: what is tried first is the best of all moves of groups and clusters."""
    problem = PlacementProblem(random_graph(1, 90), toy_cluster(3))
    instance = make_instance(problem)
    groups = instance.groups.num_groups
    start = np.random.default_rng(0).integers(3, size=groups)
    nest, evaluator = Nest(problem, instance.groups), Watched(problem, instance.groups, 2)
    before = evaluator.score(start)

    class OfAllLevels:
        def __call__(self, node, pair, arcs, edge, current, asked):
            of = next(rows for rows in views if rows.max() + 1 == len(current))
            logits = np.zeros(asked.shape, np.float32)
            for cluster, device in np.argwhere(asked):
                logits[cluster, device] = -values[tuple(np.where(of == cluster, device, start))]
            return logits

    counts = [max(4, round(share * groups)) for share in GuidedConfig().scales[1:]]
    views = [np.arange(groups), *nest.joined(start, counts)]
    moves = [(of, c, d) for of in views for c in range(of.max() + 1) for d in range(3)]
    rows = [tuple(np.where(of == c, d, start)) for of, c, d in moves]
    values = {row: Evaluator(problem).score(np.array(row)) for row in rows}
    GuidedPlacer(OfAllLevels(), EnvConfig(), NOT_ROUNDED).sweeper.sweep(instance, evaluator)
    best = min(value for row, value in values.items() if row != tuple(start))
    assert best < before
    assert values[tuple(evaluator.asked[1])] == best


@pytest.mark.parametrize("worth", [0.0, 100.0])
def test_groups_are_joined_wherever_they_are_only_if_that_loses_little(placer, worth):
    problem = PlacementProblem(random_graph(1, 120), toy_cluster(3))
    instance = make_instance(problem)
    joined = join_groups(problem, instance.groups, round(0.125 * instance.groups.num_groups))
    start = np.random.default_rng(0).integers(3, size=instance.groups.num_groups)
    evaluator = Watched(problem, instance.groups, 1000)
    evaluator.score(start)
    config = GuidedConfig(worth_rounding=worth)
    Sweeper(placer.policy, placer.env, config)._sweep_rounded(instance, evaluator)
    whole = [len(set(zip(joined.group[instance.groups.first_op], row, strict=True))) for row in evaluator.asked]
    assert whole[0] > joined.num_groups
    assert whole[1:] == [joined.num_groups] * (1 + joined.num_groups * (worth > 0))


def test_at_most_two_moves_are_kept_between_two_looks(placer, monkeypatch):
    """And eight are tried; observing what was simulated before costs nothing."""
    problem = PlacementProblem(random_graph(1, 60), toy_cluster(3))
    instance = make_instance(problem)
    evaluator, looks = Watched(problem, instance.groups), []
    look = Sweeper._likeliest

    def watched(self, *arguments):
        looks.append(len(evaluator.asked))
        return look(self, *arguments)

    monkeypatch.setattr(Sweeper, "_likeliest", watched)
    start = np.zeros(instance.groups.num_groups, np.int64)
    evaluator.score(start)
    placer.sweeper.sweep_level(instance, 1.0, evaluator)
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
    placer.sweeper.sweep_level(instance, 1.0, evaluator, 4)
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


def test_a_sweep_in_which_nothing_gets_better_ends_early():
    problem = PlacementProblem(random_graph(1, 120), toy_cluster(3))
    instance = make_instance(problem)
    oracle, groups = Oracle(instance), instance.groups.num_groups
    searched = Evaluator(problem, instance.groups, 3000)
    annealing(searched, np.zeros(groups, np.int64), np.random.default_rng(0))
    start, score = searched.best_groups
    for patience, end in [(0.5, groups // 2), (0.0, 16), (10.0, groups)]:
        own = GuidedConfig(patience=patience)
        evaluator = Watched(problem, instance.groups)
        evaluator.score(start)
        GuidedPlacer(lambda *seen: -oracle(*seen), EnvConfig(), own).sweeper.sweep_level(instance, 1.0, evaluator)
        assert evaluator.best_score == score  # the worst moves were tried first
        assert end <= len(evaluator.asked) - 1 <= min(end + own.tries - 1, groups)


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
    placer.sweeper.sweep_level(instance, 1.0, evaluator)
    assert {len(rows) for rows in batches[:-1]} <= {2, 3}  # of the eight after a look
    for rows in batches:
        assert ((rows != here).sum(1) == 1).all()
        then = [Evaluator(problem).score(row) for row in rows]
        scores += then
        if min(then) <= min(scores) * 1.003:
            here = rows[int(np.argmin(then))]
    assert evaluator.best_groups[1] == min(scores)
