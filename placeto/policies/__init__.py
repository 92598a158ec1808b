"""Placers that learn: networks, and how they answer for one graph.

In come observations of an environment, or a graph's features; out go distributions over moves, or over placements.
`POLICIES` names them, and what makes a placer of a trained one: `guided_search`, `traversal` or `one_shot.sampling`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from placeto.policies.guided_search import guided_placer
from placeto.policies.one_shot.gdp import GdpConfig, GdpPolicy
from placeto.policies.one_shot.grouper import GrouperConfig, GrouperPolicy
from placeto.policies.one_shot.sampling import sampling_placer
from placeto.policies.one_shot.seq2seq import Seq2SeqConfig, Seq2SeqPolicy
from placeto.policies.placeto import PlacetoConfig, PlacetoPolicy
from placeto.policies.placeto_paper import PlacetoPaperConfig, PlacetoPaperPolicy
from placeto.policies.traversal import traversal_placer

__all__ = ["POLICIES", "IterativeConfig", "OneShotConfig", "PolicyEntry"]

IterativeConfig = PlacetoConfig | PlacetoPaperConfig
OneShotConfig = Seq2SeqConfig | GrouperConfig | GdpConfig


@dataclass(frozen=True)
class PolicyEntry:
    """What a learned placer is made of."""

    kind: Literal["iterative", "one-shot"]
    config: type  # dataclass of the policy's settings
    policy: Callable[[Any], Any]  # from such settings
    placer: Callable[[Mapping[str, Any], Any], Any]  # from a checkpoint and such a policy


POLICIES = {
    "placeto": PolicyEntry("iterative", PlacetoConfig, PlacetoPolicy, guided_placer),
    "placeto-paper": PolicyEntry("iterative", PlacetoPaperConfig, PlacetoPaperPolicy, traversal_placer),
    "seq2seq": PolicyEntry("one-shot", Seq2SeqConfig, Seq2SeqPolicy, sampling_placer),
    "grouper": PolicyEntry("one-shot", GrouperConfig, GrouperPolicy, sampling_placer),
    "gdp": PolicyEntry("one-shot", GdpConfig, GdpPolicy, sampling_placer),
}
"""Name -> policy. Its sentence for `placeto list placers` stands in `placeto.placers.LEARNED`."""
