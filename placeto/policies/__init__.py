"""Placers that learn: their networks, and how a trained network places one graph.

Input: observations of an environment, or features of a graph. Output: distributions over moves, or over placements.
The table `POLICIES` has all of these policies by name. For each it names the function that makes a placer from the
trained network; these functions are in `guided_search`, `traversal` and `one_shot.sampling`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Literal

__all__ = ["POLICIES", "PolicyEntry"]


@dataclass(frozen=True)
class PolicyEntry:
    """What a learned placer is made of. Its modules are imported at the first access to a property that needs them."""

    kind: Literal["iterative", "traversal", "one-shot"]
    module: str  # the module of the policy and of its settings, below this package
    name: str  # the policy is {name}Policy, its settings are {name}Config
    placing: tuple[str, str]  # module, below this package, and function that make a placer

    @property
    def config(self) -> type:
        """The dataclass of the policy's settings."""
        return self._of(self.module, f"{self.name}Config")

    @property
    def policy(self) -> Callable[[Any], Any]:
        """The class of the network, which takes the policy's settings."""
        return self._of(self.module, f"{self.name}Policy")

    def make(self, settings: Any) -> Any:
        """Return a new network with the given settings, an instance of `config`."""
        return self.policy(settings)

    @property
    def placer(self) -> Callable[[Mapping[str, Any], Any], Any]:
        """The function that makes a placer from a checkpoint and a network of the checkpoint's settings."""
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
    "constructive": PolicyEntry("one-shot", "one_shot.constructive", "Constructive", _SAMPLING),
    "mlp": PolicyEntry("one-shot", "one_shot.mlp", "Mlp", _SAMPLING),
}
"""Name of a learned placer -> its policy. `placeto.placers.LEARNED` has its sentence for `placeto list placers`."""
