from dataclasses import replace

import numpy as np
import pytest

from experiments.recipes import BANDWIDTH, DEVICES, SPEED, Recipe, random_cluster, training_problems
from placeto.pretrained import TRAINED_ON
from placeto.simulator.schedule import simulate


def small(out):
    recipe = Recipe(out, graphs=("ptb:2",), validation=("ptb:1",), presets=("2xv100",), random_clusters=1)
    learning = replace(recipe.training.learning, graphs=2, supervised_moves=3, labels=4, replay=20)
    return replace(recipe, training=replace(recipe.training, iterations=4, validate_every=2, learning=learning))


def test_the_same_recipe_makes_the_same_problems(tmp_path):
    first, second = (training_problems(small(tmp_path)) for _ in range(2))
    assert list(first) == list(second)
    assert [p.cluster.hash for p in first.values()] == [p.cluster.hash for p in second.values()]


@pytest.mark.parametrize("seed", range(8))
def test_random_clusters_stay_within_their_limits(seed):
    cluster = random_cluster(np.random.default_rng(seed), "random")
    assert DEVICES[0] <= cluster.num_devices <= DEVICES[1]
    apart = ~np.eye(cluster.num_devices, dtype=bool)
    assert (cluster.bandwidth[apart] <= BANDWIDTH[1] / 1e6).all()
    assert (cluster.bandwidth[apart] >= BANDWIDTH[0] / 10e6).all()
    speeds = {device.peak() for device in cluster.devices}
    assert len(speeds) <= 2
    assert max(speeds) / min(speeds) <= max(SPEED[1], 1 / SPEED[0])


def test_some_problems_have_roofline_costs_and_some_hardly_the_memory():
    problems = training_problems(Recipe(graphs=("ptb:6",), random_clusters=4))
    assert {problem.costs.name for problem in problems.values()} >= {"roofline"}
    assert len({problem.costs.name for problem in problems.values()}) == 2
    whole = [simulate(p, np.zeros(p.num_ops, np.int64)) for p in problems.values()]
    tight = [not schedule.fits for schedule in whole]
    assert 0 < sum(tight) < len(tight) / 2
    for problem, schedule in zip(problems.values(), whole, strict=True):
        assert problem.cluster.memory.sum() > schedule.peak_memory[0]


def test_the_package_knows_what_its_policy_was_trained_on() -> None:
    assert tuple(f"{family}:{count}" for family, count in TRAINED_ON.items()) == Recipe().graphs
