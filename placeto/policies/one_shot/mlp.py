"""A control for the one-shot placers: the same small network places every unit, by what the unit itself is.

It has neither messages nor attention nor an order of decisions. What another policy does no better than this one, it
doesn't owe to its graph network, its attention or its groups.

Legend: U units, D devices.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from placeto.policies.message_passing import mlp
from placeto.policies.one_shot.base import IndependentPolicy
from placeto.policies.one_shot.inputs import TYPE_BUCKETS, UNIT_FEATURES, OneShotInput, UnitKind
from placeto.policies.one_shot.layers import TYPE_WIDTH, DeviceHead, type_mixture
from placeto.ranges import Width


@dataclass(frozen=True)
class MlpConfig:
    """What the control is made of."""

    units: UnitKind = "groups"
    """What gets a device: groups of ops, co-located ops ("paper"), or ops alone."""
    hidden: Width = 64
    """Width of the layers."""
    max_devices: Width = 8
    """Clusters of up to so many devices can be trained on.
    The policy then places on as many devices as the largest cluster of its training has, or fewer."""


class MlpPolicy(IndependentPolicy):
    """Three dense layers over a unit's types and features, then logits over devices."""

    def __init__(self, config: MlpConfig) -> None:
        super().__init__(config.units, config.max_devices)
        self.types = nn.Embedding(TYPE_BUCKETS, TYPE_WIDTH)
        self.mlp = mlp([TYPE_WIDTH + len(UNIT_FEATURES), config.hidden, config.hidden])
        self.norm = nn.LayerNorm(config.hidden)
        self.head = DeviceHead(config.hidden, config.max_devices)

    def forward(self, graph: OneShotInput) -> Tensor:
        """(U, D) logits."""
        x = self.norm(self.mlp(torch.cat([type_mixture(self.types, graph), graph.features], -1)))
        return self.head(x, self.head.embeddings(graph), graph.pair[..., None])
