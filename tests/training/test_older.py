"""Checkpoints of older versions."""

from dataclasses import asdict
from pathlib import Path

import pytest
import torch

from experiments.recipes import Recipe
from placeto.placers import load_placer
from placeto.training.checkpoint import CheckpointError, load_checkpoint, save_checkpoint
from placeto.training.config import TrainConfig, default_config
from placeto.training.older import modern
from placeto.training.trainer import pretrained_config


def test_the_package_s_checkpoint_has_the_settings_of_today() -> None:
    found = pretrained_config("pretrained", load_checkpoint("pretrained"), "out")
    assert isinstance(found, TrainConfig)
    assert found.policy == TrainConfig("out").policy
    assert found.env == TrainConfig("out").env
    saved = load_checkpoint("pretrained")["config"]
    assert saved["learning"] == asdict(Recipe().training.learning)


def test_the_network_with_messages_between_pairs_is_refused_in_one_sentence(tmp_path: Path) -> None:
    saved = {"placer": "placeto", "config": asdict(default_config("placeto", "out"))}
    save_checkpoint(saved | {"best_parameters": {"pair_messages.0.norm.weight": torch.ones(2)}}, tmp_path / "old.pt")
    with pytest.raises(CheckpointError) as refused:
        load_placer(tmp_path / "old.pt")
    says = "made with messages between (group, device) pairs, a network that is gone; train again"
    assert str(refused.value) == f"{tmp_path / 'old.pt'}: {says}"


def test_the_network_of_before_that_shared_less_with_the_paper_is_refused_in_one_sentence(tmp_path: Path) -> None:
    saved = {"placer": "placeto-paper", "config": asdict(default_config("placeto-paper", "out"))}
    save_checkpoint(saved | {"best_parameters": {"pooling.inner.0.0.weight": torch.ones(2)}}, tmp_path / "old.pt")
    with pytest.raises(CheckpointError, match=r"old\.pt: made with a network that shares less .* gone; train again$"):
        load_placer(tmp_path / "old.pt")


def test_reinforcement_of_before_goes_on_where_it_was_ppo_with_replicas() -> None:
    config = asdict(default_config("placeto", "out"))
    before = {"algorithm": "ppo", "baseline": "replicas", "baseline_rounds": 10}
    assert modern("placeto", config | {"learning": config["learning"] | before}) == config
    kept = modern("placeto", config | {"learning": config["learning"] | before | {"algorithm": "reinforce"}})
    assert kept["learning"]["algorithm"] == "reinforce"


def test_configs_of_today_are_left_as_they_are() -> None:
    for placer in ("placeto", "placeto-paper", "seq2seq", "gdp", "mlp"):
        config = asdict(default_config(placer, "out"))
        assert modern(placer, config) == config


def test_one_shot_learning_by_imitation_stays_to_be_refused_where_a_run_goes_on() -> None:
    learning = asdict(default_config("gdp", "out"))["learning"]
    gone = {"teacher": 300, "warmup_lr": 2e-3, "imitate_best": 0.0}
    assert modern("gdp", {"learning": learning | gone | {"warmup": 0.0}})["learning"] == learning
    assert modern("gdp", {"learning": learning | gone | {"warmup": 0.5}})["learning"]["warmup"] == 0.5


def test_a_one_shot_run_of_before_goes_on_with_its_reward() -> None:
    """Rewards were a setting before, then the square root was built in."""
    learning = asdict(default_config("gdp", "out"))["learning"] | {"teacher": 300, "warmup": 0.0, "warmup_lr": 2e-3}
    assert modern("gdp", {"learning": learning | {"reward": "log"}})["learning"]["reward"] == "log"


def test_the_decoder_of_before_was_not_normalised() -> None:
    policy = asdict(default_config("seq2seq", "out"))["policy"]
    before = {name: value for name, value in policy.items() if name != "normalised"}
    assert policy["normalised"]
    assert modern("seq2seq", {"policy": before})["policy"] == policy | {"normalised": False}


def test_older_checkpoints_were_made_with_roofline() -> None:
    assert modern("placeto", {"out": "x"})["costs"] == "roofline"
    assert modern("placeto", {"costs": "efficiency"})["costs"] == "efficiency"
