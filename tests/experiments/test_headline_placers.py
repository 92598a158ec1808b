from dataclasses import replace

import pytest

from experiments.headline_placers import (
    ANNEALING,
    MULTILEVEL,
    PLACERS,
    POLICY,
    UNTRAINED,
    by_recipe,
    trained,
)
from experiments.rows import problem_of
from experiments.trajectories import Clock
from placeto.problem.problem import PlacementProblem
from placeto.training.config import AnyTrainConfig, OneShotLearningConfig

SEARCHES = [POLICY, UNTRAINED, ANNEALING, MULTILEVEL]


@pytest.fixture(scope="module")
def problem() -> PlacementProblem:
    return problem_of("ptb:validation:0", "2xv100")


@pytest.mark.parametrize("name", SEARCHES)
def test_searches_from_one_device_begin_there_and_keep_their_budget(name: str, problem: PlacementProblem) -> None:
    met = PLACERS[name].run(problem, 60, 0, Clock())
    count, _, us = met.history[0]
    assert (count, us) == (1, pytest.approx(problem.single_device_us))
    assert met.simulations == 60
    assert met.makespan_us < problem.single_device_us
    assert PLACERS[name].run(problem, 60, 0, Clock()).makespan_us == met.makespan_us


def small(problem: PlacementProblem, out: str) -> AnyTrainConfig:
    config = by_recipe("gdp", "ours", problem, out)
    return replace(config, learning=replace(OneShotLearningConfig(), graphs=1, samples=8))  # type: ignore[arg-type]


def test_training_from_scratch_gives_its_best_met(problem: PlacementProblem) -> None:
    met = trained(small, problem, 24, 0, Clock())
    assert met.simulations == 24
    spans = [us for _, _, us in met.history]
    assert spans == sorted(spans, reverse=True)
    assert met.makespan_us == spans[-1]
    assert {count for count, _, _ in met.history} <= {8, 16, 24}
