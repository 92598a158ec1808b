"""Placers that learn: their networks, and how a trained network places one graph.

Input: observations of an environment, or features of a graph. Output: distributions over moves, or over placements.
The table `POLICIES` has all of them by name, with what makes a placer of a trained network: `guided_search`,
`traversal` or `one_shot.sampling`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Literal

__all__ = ["POLICIES", "PolicyEntry"]


@dataclass(frozen=True)
class PolicyEntry:
    """What a learned placer is made of; its modules are imported when they are asked for."""

    kind: Literal["iterative", "traversal", "one-shot"]
    module: str  # of the policy and its settings, below this package
    name: str  # the policy is {name}Policy, its settings are {name}Config
    placing: tuple[str, str]  # module and function that make a placer

    @property
    def config(self) -> type:
        """Dataclass of the policy's settings."""
        return self._of(self.module, f"{self.name}Config")

    @property
    def policy(self) -> Callable[[Any], Any]:
        """The network, from such settings."""
        return self._of(self.module, f"{self.name}Policy")

    def make(self, settings: Any) -> Any:
        """The network of such settings."""
        return self.policy(settings)

    @property
    def placer(self) -> Callable[[Mapping[str, Any], Any], Any]:
        """A placer from a checkpoint and such a network."""
        return self._of(*self.placing)

    @staticmethod
    def _of(module: str, name: str) -> Any:
        return getattr(import_module(f"{__name__}.{module}"), name)


_SAMPLING = "one_shot.sampling", "sampling_placer"
POLICIES = {
    "placeto": PolicyEntry("iterative", "placeto", "Placeto", ("guided_search", "guided_placer")),
    "placeto-paper": PolicyEntry("traversal", "placeto_paper", "PlacetoPaper", ("traversal", "traversal_placer")),
    "seq2seq": PolicyEntry("one-shot", "one_shot.seq2seq", "Seq2Seq", _SAMPLING),
    "grouper": PolicyEntry("one-shot", "one_shot.grouper", "Grouper", _SAMPLING),
    "gdp": PolicyEntry("one-shot", "one_shot.gdp", "Gdp", _SAMPLING),
    "mlp": PolicyEntry("one-shot", "one_shot.mlp", "Mlp", _SAMPLING),
}
"""Name -> policy. Its sentence for `placeto list placers` is in `placeto.placers.LEARNED`."""
