"""Placers that learn: networks, and how they answer for one graph.

In come observations of an environment, or a graph's features; out go distributions over moves, or over placements.
`POLICIES` names them; `guided_search` and `one_shot.sampling` make placers of trained ones.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from placeto.policies.one_shot.gdp import GdpConfig, GdpPolicy
from placeto.policies.one_shot.grouper import GrouperConfig, GrouperPolicy
from placeto.policies.one_shot.seq2seq import Seq2SeqConfig, Seq2SeqPolicy
from placeto.policies.placeto import PlacetoConfig, PlacetoPolicy

__all__ = ["POLICIES", "OneShotConfig", "PolicyEntry"]

OneShotConfig = Seq2SeqConfig | GrouperConfig | GdpConfig


@dataclass(frozen=True)
class PolicyEntry:
    """What a learned placer is made of."""

    kind: Literal["iterative", "one-shot"]
    config: type  # dataclass of the policy's settings
    policy: Callable[[Any], Any]  # from such settings


POLICIES = {
    "placeto": PolicyEntry("iterative", PlacetoConfig, PlacetoPolicy),
    "seq2seq": PolicyEntry("one-shot", Seq2SeqConfig, Seq2SeqPolicy),
    "grouper": PolicyEntry("one-shot", GrouperConfig, GrouperPolicy),
    "gdp": PolicyEntry("one-shot", GdpConfig, GdpPolicy),
}
"""Name -> policy. Its sentence for `placeto list placers` stands in `placeto.placers.LEARNED`."""
