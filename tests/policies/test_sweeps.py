import numpy as np

from placeto.environment.columns import NODE
from placeto.environment.env_config import EnvConfig
from placeto.environment.instance import InstanceBatch, make_instance
from placeto.environment.observation import score_moves
from placeto.policies.sweeps import GuidedConfig, Sweeper
from placeto.simulator.evaluator import Evaluator
from tests.cases import toy_problem


class Oracle:
    """Knows the change of the makespan by every single move, from simulations."""

    def __init__(self, instance):
        self.batch, self.groups, self.devices = (
            InstanceBatch.of([instance]),
            instance.groups,
            instance.problem.num_devices,
        )

    def __call__(self, seen, legal):
        shape = self.groups.num_groups, self.devices
        group, device = (grid.reshape(1, -1) for grid in np.indices(shape))
        scores = score_moves(self.batch, np.zeros(1, np.int64), seen.current[None], group, device)
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


def test_a_sweep_over_all_levels_tries_no_move_twice_and_moves_what_stands_on_one_device(placer):
    problem = toy_problem(1, 90, 3)
    instance = make_instance(problem)
    groups = instance.groups.num_groups
    evaluator = Watched(problem, instance.groups, 1000)
    here = start = np.random.default_rng(0).integers(3, size=groups)
    best = evaluator.score(start)
    placer.sweeper.sweep(evaluator)
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
    assert min(sizes) == 1
    assert max(sizes) > 4
    assert evaluator.best_groups[1] == best


def test_a_sweep_ends_once_nothing_better_is_found():
    problem = toy_problem(1, 120, 3)
    instance = make_instance(problem)
    oracle = Oracle(instance)
    start = np.random.default_rng(0).integers(3, size=instance.groups.num_groups)
    for patience in (5, 20):
        evaluator, own = Watched(problem, instance.groups), GuidedConfig(levels=1, in_vain=patience)
        evaluator.score(start)
        Sweeper(oracle, EnvConfig(), own).sweep(evaluator)
        scores = [Evaluator(problem).score(placement) for placement in evaluator.asked]
        assert evaluator.best_score == min(scores) < scores[0]
        assert len(scores) - 1 - int(np.argmin(scores)) == patience


def test_a_fixed_traversal_asks_for_each_group_once_and_may_leave_it_where_it_is():
    problem = toy_problem(1, 30, 3)
    instance = make_instance(problem)
    turns, groups, oracle = [], instance.groups.num_groups, Oracle(instance)

    def policy(seen, legal):
        (turn,) = np.flatnonzero(legal.any(1))
        assert list(np.flatnonzero(seen.node[:, NODE.is_current])) == [turn]
        turns.append(int(turn))
        return oracle(seen, legal)

    order = EnvConfig(order="topological", tolerance=None)
    evaluator = Watched(problem, instance.groups)
    here = np.zeros(groups, np.int64)
    scores = [evaluator.score(here)]
    Sweeper(policy, order, GuidedConfig(levels=1)).sweep(evaluator)
    assert turns == list(np.argsort(instance.traversal))
    moved = []
    for placement in evaluator.asked[1:]:
        (changed,) = np.flatnonzero(placement != here)
        moved.append(changed)
        scores.append(Evaluator(problem).score(placement))
        here = placement
    assert [group for group in turns if group in moved] == moved
    assert 3 < len(moved) < groups  # it knows what is best, and stays where that is
    assert scores == sorted(scores, reverse=True)
