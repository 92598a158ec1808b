import numpy as np

from experiments.recipes import Recipe, training_problems
from placeto.pretrained import TRAINED_ON
from placeto.simulator.schedule import simulate


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
