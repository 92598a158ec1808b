"""Who gives a setting that the training never reads is told so."""

import re
from dataclasses import replace
from typing import Any

import pytest

from placeto.training.config import LearningConfig, default_config
from placeto.training.without_effect import REINFORCED, SUPERVISED, without_effect


@pytest.mark.parametrize(
    ("placer", "given", "says"),
    [
        ("placeto", {"lr": 0.01}, ["learning.lr: has no effect, because learning.reinforcement is 0; learning.super"]),
        ("placeto", {"clip": 0.3, "labels": 3}, ["learning.clip: has no effect, because learning.reinforcement is 0"]),
        ("placeto", {"reinforcement": 1.0, "labels": 3, "lr": 0.1}, ["learning.labels: has no effect, because"]),
        ("placeto", {"reinforcement": 0.5, "labels": 3, "lr": 0.1}, []),
        ("placeto-paper", {"lr": 0.1}, []),
        ("gdp", {"lr": 0.1, "epochs": 3}, []),
        ("gdp", {"algorithm": "reinforce", "epochs": 3}, ["learning.epochs: has no effect, because learning.algo"]),
        ("gdp", {"quantile": 0.5}, ["learning.quantile: has no effect, because learning.baseline is samples, not q"]),
        ("gdp", {"baseline": "moving", "decay": 0.5}, []),
        (
            "gdp",
            {"normalise": False, "by_graph": True},
            ["learning.by_graph: has no effect, because learning.normalise is off"],
        ),
        ("gdp", {"searched": 50}, ["learning.searched: has no effect, because learning.imitation is 0"]),
        ("gdp", {"imitation": 0.2, "searched": 50}, []),
        ("gdp", {"soften": 2.0}, ["learning.soften: has no effect, because the training doesn't begin with a check"]),
    ],
)
def test_settings_that_are_not_read_are_told(placer: str, given: dict[str, Any], says: list[str]) -> None:
    usual: Any = default_config(placer, "out")
    config = replace(usual, learning=replace(usual.learning, **given))
    found = without_effect(config, usual, False)
    assert [sentence[: len(start)] for sentence, start in zip(found, says, strict=True)] == says


def test_imitation_has_no_effect_if_simulations_alone_end_the_training() -> None:
    usual: Any = replace(default_config("gdp", "out"), simulations=100)
    given = replace(usual, learning=replace(usual.learning, imitation=0.2))
    (said,) = without_effect(given, usual, False)
    assert said.startswith("learning.imitation: has no effect, because the training has a limit of simulations")
    assert without_effect(replace(given, iterations=5), usual, False) == []


def test_settings_that_are_not_given_are_not_told() -> None:
    usual: Any = default_config("gdp", "out")
    usual = replace(usual, learning=replace(usual.learning, soften=3.0, quantile=0.2))  # as by a recipe
    assert without_effect(usual, usual, False) == []
    assert without_effect(replace(usual, learning=replace(usual.learning, soften=2.0)), usual, True) == []


def test_the_page_names_the_same_settings() -> None:
    named = re.findall(r"`(\w+)`", (LearningConfig.__doc__ or "").partition("have no effect:")[2])
    assert named == [*REINFORCED, *SUPERVISED]
