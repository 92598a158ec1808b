"""Placing one graph as in the Placeto paper: the policy visits the nodes in a fixed order and places each in turn."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from placeto.environment.config import EnvConfig
from placeto.policies.episodic import EpisodePlacer


class TraversalPlacer(EpisodePlacer):
    """A trained policy of a fixed traversal as a placer: in each episode it visits every node once."""

    def __init__(self, policy: nn.Module, env: EnvConfig) -> None:
        super().__init__(policy, env, "placeto-paper")


def traversal_placer(checkpoint: Mapping[str, Any], policy: nn.Module) -> TraversalPlacer:
    """A placer from a checkpoint and a policy of its config, with the parameters that validated best."""
    policy.load_state_dict(checkpoint["best_parameters"])
    return TraversalPlacer(policy, EnvConfig(**checkpoint["config"]["env"]))
