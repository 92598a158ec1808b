"""Checkpoints of older versions."""

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from placeto.placers import load_placer
from placeto.training.checkpoint import CheckpointError, load_checkpoint, save_checkpoint
from placeto.training.config import LearningConfig, TrainConfig, default_config
from placeto.training.older import OlderError, modern
from placeto.training.trainer import pretrained_config, train
from tests.training.test_trainer import config, problems

POLICY = {
    "features": "schedule",
    "fine_scale": True,
    "hidden": 32,
    "rounds": 2,
    "messages": "pairs",
    "pooling": "none",
    "head": "pair",
    "fixed_devices": 4,
    "change_weight": 100.0,
}
LEARNING = {
    "warmup": 0.75,
    "labels": 24,
    "warmup_lr": 1e-3,
    "warmup_replicas": 3,
    "warmup_moves": None,
    "moves": 7,
    "intermediate_rewards": False,
}


def older(**changes: Any) -> dict[str, Any]:
    """A config as versions before had it; "policy.head" for a setting of a part."""
    saved: dict[str, Any] = {"out": "x", "policy": dict(POLICY), "env": {"order": "policy", "stay": False}}
    saved["learning"] = dict(LEARNING)
    for name, value in changes.items():
        part, _, setting = name.partition("__")
        saved[part][setting] = value
    return saved


def test_the_package_s_checkpoint_has_the_settings_of_today() -> None:
    found = pretrained_config("pretrained", load_checkpoint("pretrained"), "out")
    assert isinstance(found, TrainConfig)
    assert found.policy == TrainConfig("out").policy
    assert found.env == TrainConfig("out").env
    saved = load_checkpoint("pretrained")["config"]
    assert saved["learning"] == asdict(LearningConfig())


def test_settings_are_renamed_and_what_was_not_there_had_its_old_default() -> None:
    found = modern("placeto", older())
    assert found["policy"] == {"hidden": 32, "rounds": 2, "change_weight": 100.0}
    assert found["env"] == {"order": "policy"}
    learning = LearningConfig(**found["learning"])
    assert (learning.reinforcement, learning.supervised_lr, learning.supervised_replicas) == (0.25, 1e-3, 3)
    assert learning.supervised_moves == learning.moves == 7
    assert (learning.replay, learning.annealed, learning.parts, learning.fits) == (0, 0.0, 0.0, 1)
    assert learning.reward == "at-the-end"


@pytest.mark.parametrize(
    ("setting", "value", "says"),
    [
        ("policy__messages", "nodes", "made with policy.messages 'nodes', which is gone ('pairs' is built in)"),
        ("policy__features", "paper", "made with policy.features 'paper', which is gone ('schedule' is built in)"),
        ("env__stay", True, "made with env.stay True, which is gone (False is built in)"),
    ],
)
def test_another_policy_is_refused_in_one_sentence(setting: str, value: object, says: str, tmp_path: Path) -> None:
    with pytest.raises(OlderError) as error:
        modern("placeto", older(**{setting: value}))
    assert str(error.value) == says
    path = tmp_path / "old.pt"
    save_checkpoint({"placer": "placeto", "config": older(**{setting: value}), "best_parameters": {}}, path)
    with pytest.raises(CheckpointError) as refused:
        load_placer(path)
    assert str(refused.value) == f"{path}: {says}; train again"


def test_configs_of_today_are_left_as_they_are() -> None:
    for placer in ("placeto", "placeto-paper", "seq2seq", "gdp"):
        config = asdict(default_config(placer, "out"))
        assert modern(placer, config) == config


def test_one_shot_learning_by_imitation_stays_to_be_refused_where_a_run_goes_on() -> None:
    learning = asdict(default_config("gdp", "out"))["learning"]
    gone = {"teacher": 300, "warmup_lr": 2e-3, "imitate_best": 0.0, "reward": "sqrt"}
    assert modern("gdp", {"learning": learning | gone | {"warmup": 0.0}})["learning"] == learning
    assert modern("gdp", {"learning": learning | gone | {"warmup": 0.5}})["learning"]["warmup"] == 0.5


def test_an_older_run_goes_on(tmp_path: Path) -> None:
    whole, half = config(tmp_path / "whole", iterations=2), config(tmp_path / "half", iterations=1)
    train(whole, problems(2), problems(1, 10))
    train(half, problems(2), problems(1, 10))
    saved = load_checkpoint(tmp_path / "half")
    learning = saved["config"]["learning"]
    learning["warmup"] = 1.0 - learning.pop("reinforcement")
    for name in ("lr", "replicas", "moves"):
        learning[f"warmup_{name}"] = learning.pop(f"supervised_{name}")
    saved["config"]["policy"] = POLICY
    saved["config"]["env"]["stay"] = False
    save_checkpoint(saved, tmp_path / "half")
    going_on = replace(half, iterations=2)
    train(going_on, problems(2), problems(1, 10), resume=True)
    assert load_checkpoint(tmp_path / "half")["iteration"] == 2
    saved["config"]["learning"]["warmup"] = 0.25
    save_checkpoint(saved, tmp_path / "half")
    with pytest.raises(CheckpointError, match=r"learning\.reinforcement was 0\.75, now it is 0\.5"):
        train(going_on, problems(2), problems(1, 10), resume=True)


def test_older_checkpoints_were_made_with_roofline() -> None:
    assert modern("placeto", older())["costs"] == "roofline"
    assert modern("placeto", {**older(), "costs": "efficiency"})["costs"] == "efficiency"
