"""Recipes of the papers of one-shot placers."""

import pytest

from placeto.errors import TrainingError
from placeto.policies import POLICIES
from placeto.training.config import check_config, default_config
from placeto.training.recipes import PAPERS, recipe_config

OURS = "placeto", "constructive"  # no paper has them


@pytest.mark.parametrize("placer", POLICIES)
def test_every_recipe_can_be_trained(placer: str) -> None:
    assert recipe_config(placer, "ours", "out") == default_config(placer, "out")
    if placer in OURS:
        with pytest.raises(TrainingError, match=f"recipe paper: placer '{placer}' has none; seq2seq, grouper"):
            recipe_config(placer, "paper", "out")
        return
    config = recipe_config(placer, "paper", "out")
    check_config(config)
    assert config.placer == placer


def test_every_one_shot_placer_of_a_paper_has_its_recipe() -> None:
    assert set(PAPERS) == {name for name, entry in POLICIES.items() if entry.kind == "one-shot"} - {*OURS}


def test_the_control_differs_from_colocrl_by_its_network_alone() -> None:
    assert PAPERS["mlp"].learning == PAPERS["seq2seq"].learning
    assert PAPERS["mlp"].policy.units == PAPERS["seq2seq"].policy.units


def test_published_numbers() -> None:
    """Of HDP: learning rate, bound, temperature, samples; all give a failed placement the reward -10."""
    hdp = recipe_config("grouper", "paper", "out")
    assert (hdp.learning.lr, hdp.policy.bound, hdp.policy.temperature, hdp.learning.samples) == (0.1, 5.0, 10.0, 4)  # type: ignore[union-attr]
    assert {recipe.learning.failed for recipe in PAPERS.values()} == {-10.0}
