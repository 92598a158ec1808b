"""The guided search that comes with the package, and the same with an untrained network."""

from __future__ import annotations

from functools import cache

import torch

from placeto.placers import load_placer
from placeto.policies.compiled import CompiledPolicy
from placeto.policies.guided_search import GuidedPlacer
from placeto.policies.placeto import PlacetoConfig, PlacetoPolicy
from placeto.training.checkpoint import load_checkpoint


@cache
def shipped() -> GuidedPlacer:
    """The placer that comes with the package."""
    placer = load_placer("placeto")
    assert isinstance(placer, GuidedPlacer)
    return placer


@cache
def untrained(seed: int) -> GuidedPlacer:
    """The same with fresh parameters."""
    config = PlacetoConfig(**load_checkpoint("pretrained")["config"]["policy"])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        policy = CompiledPolicy.of(PlacetoPolicy(config))
    return GuidedPlacer(policy, shipped().env, shipped().search)
