import re
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

import pytest
import torch

from placeto.errors import TrainingError
from placeto.plumbing.ranges import Share, within
from placeto.policies.one_shot.grouper import GrouperConfig
from placeto.policies.placeto_paper import PlacetoPaperConfig
from placeto.training.config import (
    LearningConfig,
    OneShotLearningConfig,
    OneShotTrainConfig,
    TrainConfig,
    check_config,
)
from placeto.training.learners.iterative import IterativeLearner
from placeto.training.learners.learner import Run
from placeto.training.settings import check_settings
from placeto.training.trainer import train
from tests.training.test_trainer import QUICK, config, problems, same


@dataclass(frozen=True)
class Inner:
    rate: Share = 0.5
    kind: Literal["a", "b"] = "a"


@dataclass(frozen=True)
class Outer:
    name: str = "x"
    count: Annotated[int, within(1, 9)] = 3
    limit: float | None = None
    flag: bool = True
    shares: tuple[Share, ...] = (1.0,)
    inner: Inner = field(default_factory=Inner)


def test_good_settings_pass() -> None:
    check_settings(Outer())
    check_settings(Outer(limit=3, inner=Inner(rate=1)))  # whole numbers are numbers
    check_settings(Inner(rate=1.0), "inner.")


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (Outer(count=0), "count must be >= 1, not 0"),
        (Outer(count=10), "count must be <= 9, not 10"),
        (Outer(limit=float("nan")), "limit must be a finite number, not nan"),
        (Outer(limit=float("inf")), "limit must be a finite number, not inf"),
        (Outer(count=True), "count must be an integer, not True"),
        (Outer(count=2.0), "count must be an integer, not 2.0"),  # type: ignore[arg-type]
        (Outer(flag=1), "flag must be a boolean, not 1"),  # type: ignore[arg-type]
        (Outer(name=None), "name must be a string, not None"),  # type: ignore[arg-type]
        (Outer(limit="3"), "limit must be a number, not '3'"),  # type: ignore[arg-type]
        (Outer(shares=[1.0]), r"shares must be a list, not \[1.0\]"),  # type: ignore[arg-type]
        (Outer(inner=Inner(rate=2.0)), r"inner\.rate must be <= 1, not 2"),
        (Outer(inner=Inner(kind="c")), r"inner\.kind must be 'a' or 'b', not 'c'"),  # type: ignore[arg-type]
        (Outer(inner=Inner(kind=[])), r"inner\.kind must be 'a' or 'b', not \[\]"),  # type: ignore[arg-type]
        (Outer(name=["x" * 999]), r"name must be a string, not .{60}$"),  # type: ignore[arg-type]
    ],
)
def test_bad_ones_are_named(wrong: Any, says: str) -> None:
    with pytest.raises(TrainingError, match=f"^{says}"):
        check_settings(wrong)


OTHERS = {
    0.0: {"lr": 0.01, "replicas": 3, "moves": 3, "reward": "at-the-end", "discount": 0.5, "clip": 0.01}
    | {"epochs": 1, "minibatch": 2, "entropy": 0.5},
    1.0: {"supervised_lr": 0.01, "supervised_replicas": 1, "supervised_moves": 2, "labels": 3, "replay": 4}
    | {"fits": 1, "annealed": 0.9},
}
"""Other values of the settings that have no effect at a share of reinforcement."""


def learned(learning: LearningConfig) -> dict[str, torch.Tensor]:
    """The parameters after two iterations."""
    learner = IterativeLearner(Run(config("", learning=learning), problems(2), problems(1, 10)))
    state = learner.initial_state()
    for done in (0.0, 0.5):
        learner.iterate(state, done)
    return state.policy.state_dict()


@pytest.mark.slow
@pytest.mark.parametrize("reinforcement", [0.0, 1.0])
def test_the_settings_that_have_no_effect_without_a_stage_are_named(reinforcement: float) -> None:
    sentences = (LearningConfig.__doc__ or "").partition("If `reinforcement` is 0")[2].partition("If it is 1")
    named = re.findall(r"`(\w+)`", sentences[2 if reinforcement else 0])
    others: dict[str, Any] = OTHERS[reinforcement]
    assert named == list(others)
    base = replace(QUICK, reinforcement=reinforcement, replay=20, annealed=0.4)
    assert same(learned(replace(base, **others)), learned(base))
    assert not same(learned(replace(base, temperature=3.0)), learned(base))


def test_measured_step_times_are_no_labels_of_the_supervised_stage(tmp_path):
    with pytest.raises(TrainingError, match=r"learning\.reinforcement must be 1 with measured step times, .* not 0\.5"):
        train(config(tmp_path), problems(2), None, measure=lambda number, placement: 1.0)


def test_what_is_imitated_is_simulated_and_says_where_units_go(tmp_path) -> None:
    imitating = OneShotTrainConfig(str(tmp_path), iterations=1, learning=OneShotLearningConfig(imitation=0.5))
    with pytest.raises(TrainingError, match=r"learning\.imitation must be 0 with measured step times, .* not 0\.5"):
        train(imitating, problems(2), None, measure=lambda number, placement: 1.0)
    grouper = replace(imitating, placer="grouper", policy=GrouperConfig())
    with pytest.raises(TrainingError, match=r"^learning\.imitation must be 0 for grouper"):
        train(grouper, problems(2), None)


@pytest.mark.parametrize("kind", [TrainConfig, OneShotTrainConfig])
def test_settings_of_another_kind_of_placer_are_refused(kind: Any) -> None:
    with pytest.raises(TrainingError, match=f"'placeto-paper' needs a TraversalTrainConfig, not a {kind.__name__}$"):
        check_config(kind("out", placer="placeto-paper", policy=PlacetoPaperConfig()))
