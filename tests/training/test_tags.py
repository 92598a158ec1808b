from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from placeto.training.config import AnyTrainConfig, OneShotTrainConfig, TrainConfig, default_config
from placeto.training.curves import BY_PLACEMENTS, OF_PLACEMENTS
from placeto.training.tags import TAGS, of_graph, tags_table
from placeto.training.trainer import train
from tests.training.test_trainer import QUICK, problems

PAGE = Path(__file__).parents[2] / "docs" / "curves.md"
ALL = {tag for tag in TAGS if tag.split("/")[0] in ("makespan", "validation", "placements", "seconds", "train")}
LEARNED_FROM = {tag for tag in TAGS if tag.split("/")[0] in ("reward", "return", "baseline", "advantage")}
UPDATE = {"loss/policy", "policy/entropy", "policy/entropy_weight"}
PPO = {"policy/kl", "policy/clipped_share"}
SUPERVISED = {"loss/supervised", "loss/ranking", "loss/label_error"}
VALIDATION = ("r10", "r11")


def small(placer: str, out: Path) -> AnyTrainConfig:
    """Two iterations: of placeto one of each stage."""
    config = replace(default_config(placer, str(out)), iterations=2, validate_every=1)
    if isinstance(config, OneShotTrainConfig):
        return replace(config, learning=replace(config.learning, graphs=2, samples=4))
    return replace(config, learning=QUICK) if isinstance(config, TrainConfig) else config


@pytest.mark.parametrize("placer", ["placeto", "placeto-paper", "seq2seq", "constructive"])  # each sort of learner
def test_each_learned_placer_writes_the_same_tags_against_iterations_and_placements(
    placer: str, tmp_path: Path
) -> None:
    config = small(placer, tmp_path)
    numbers = train(config, problems(2), problems(2, 10))
    assert [tag for tag, value in numbers.items() if not np.isfinite(value)] == []
    expected = (ALL | LEARNED_FROM | UPDATE) - {"validation/end/<graph>", "validation/end_distribution"}
    expected |= {of_graph(name) for name in VALIDATION}
    expected |= SUPERVISED if placer == "placeto" else set()
    expected |= PPO if getattr(config.learning, "algorithm", "reinforce") == "ppo" else set()
    events, by_placements = EventAccumulator(str(tmp_path)), EventAccumulator(str(tmp_path / BY_PLACEMENTS))
    for each, group in ((events, ""), (by_placements, OF_PLACEMENTS)):
        each.Reload()
        assert {tag for tag in each.Tags()["scalars"] if not tag.startswith("hparam/")} == {group + t for t in expected}
    first = events.Scalars("validation/end")[0]
    assert (first.step, first.value) == (0, events.Scalars("validation/untrained_end")[0].value)
    simulated = events.Scalars("placements/simulated")
    assert [event.step for event in simulated] == [1, 2]
    assert [event.step for event in by_placements.Scalars(f"{OF_PLACEMENTS}train/learning_rate")] == [
        e.value for e in simulated
    ]
    assert events.Tags()["histograms"] == ["validation/end_distribution"]
    assert events.Tags()["images"] == ["schedule/validation"]


def test_the_page_of_curves_has_the_table() -> None:
    assert tags_table() in PAGE.read_text(), "paste what `print(placeto.training.tags.tags_table())` says"
