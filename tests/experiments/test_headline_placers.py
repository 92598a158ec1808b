from dataclasses import replace

import numpy as np
import pytest

from experiments.harness import problem_of
from experiments.headline_placers import (
    ANNEALING,
    MULTILEVEL,
    PLACERS,
    POLICY,
    UNTRAINED,
    ZERO_SHOT,
    by_recipe,
    from_one_device,
    shipped,
    trained,
    untrained,
)
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


def test_passes_begin_on_one_device(problem: PlacementProblem) -> None:
    result = from_one_device(shipped()).one_pass(problem)
    assert result.history[0][2] == pytest.approx(problem.single_device_us)
    assert result.makespan_us < problem.single_device_us


def test_untrained_networks_are_as_large_as_the_shipped_one_and_differ_by_seed() -> None:
    known, first, second = (placer.policy.parameters for placer in (shipped(), untrained(0), untrained(1)))
    assert {name: value.shape for name, value in first.items()} == {name: value.shape for name, value in known.items()}
    assert any(not np.array_equal(first[name], second[name]) for name in first)
    assert untrained(0).search == shipped().search


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


def test_every_line_has_settings_that_can_be_compared(problem: PlacementProblem) -> None:
    trainings = [name for name, placer in PLACERS.items() if isinstance(placer.settings(problem), dict)]
    assert len({str(PLACERS[name].settings(problem)) for name in trainings}) == len(trainings) >= 6
    assert not PLACERS.keys() & ZERO_SHOT.keys()
