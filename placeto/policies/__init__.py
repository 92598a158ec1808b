"""Placers that learn: their networks, and how a trained network places one graph.

Input: observations of an environment, or features of a graph. Output: distributions over moves, or over placements.
The table `POLICIES` has all of these policies by name. `placer_of` makes a placer from a trained network.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Literal

__all__ = ["PLACING", "POLICIES", "PolicyEntry", "placer_of"]

PLACING = {
    "iterative": ("guided_search", "guided_placer"),
    "traversal": ("traversal", "traversal_placer"),
    "one-shot": ("one_shot.sampling", "sampling_placer"),
}
"""Kind of policy -> module, below this package, and function that make a placer of a checkpoint and its network."""


def placer_of(kind: str, checkpoint: Mapping[str, Any], network: Any) -> Any:
    """Return the placer of a checkpoint and a network of this kind, which has the checkpoint's parameters."""
    return _found(*PLACING[kind])(checkpoint, network)


def _found(module: str, name: str) -> Any:
    return getattr(import_module(f"{__name__}.{module}"), name)


@dataclass(frozen=True)
class PolicyEntry:
    """What a learned placer is made of. Its modules are imported at the first access to a property that needs them."""

    kind: Literal["iterative", "traversal", "one-shot"]
    module: str  # the module of the policy and of its settings, below this package
    name: str  # the policy is {name}Policy, its settings are {name}Config

    @property
    def config(self) -> type:
        """The dataclass of the policy's settings."""
        return _found(self.module, f"{self.name}Config")

    @property
    def policy(self) -> Callable[[Any], Any]:
        """The class of the network, which takes the policy's settings."""
        return _found(self.module, f"{self.name}Policy")

    def make(self, settings: Any) -> Any:
        """Return a new network with the given settings, an instance of `config`."""
        return self.policy(settings)


POLICIES = {
    "placeto": PolicyEntry("iterative", "placeto", "Placeto"),
    "placeto-paper": PolicyEntry("traversal", "placeto_paper", "PlacetoPaper"),
    "seq2seq": PolicyEntry("one-shot", "one_shot.seq2seq", "Seq2Seq"),
    "grouper": PolicyEntry("one-shot", "one_shot.grouper", "Grouper"),
    "gdp": PolicyEntry("one-shot", "one_shot.gdp", "Gdp"),
    "constructive": PolicyEntry("one-shot", "one_shot.constructive", "Constructive"),
    "mlp": PolicyEntry("one-shot", "one_shot.mlp", "Mlp"),
}
"""Name of a learned placer -> its policy. `placeto.placers.LEARNED` has its sentence for `placeto list placers`."""
