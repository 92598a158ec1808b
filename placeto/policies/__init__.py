"""Learned placers, by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from torch import nn

from placeto.policies.placeto import PlacetoConfig, PlacetoPolicy


@dataclass(frozen=True)
class PolicyEntry:
    """What a learned placer is made of."""

    kind: Literal["iterative"]
    config: type  # dataclass of the policy's settings
    policy: Callable[[Any], nn.Module]  # from such settings


POLICIES = {
    "placeto": PolicyEntry("iterative", PlacetoConfig, PlacetoPolicy),
}
"""Name -> policy. Its sentence for `placeto list placers` stands in `placeto.load.LEARNED`."""
