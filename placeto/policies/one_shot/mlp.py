"""A control for the one-shot placers: one small network places each unit by the features of this unit alone.

It has no messages, no attention and no order of decisions. Where another policy is no better than this one, its graph
network, its attention and its groups gain nothing.

Legend: U units, D devices.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from placeto.plumbing.ranges import Width
from placeto.policies.message_passing import mlp
from placeto.policies.one_shot.inputs import TYPE_BUCKETS, UNIT_FEATURES, OneShotInput, UnitKind
from placeto.policies.one_shot.one_shot_policy import IndependentPolicy
from placeto.policies.one_shot.unit_layers import TYPE_WIDTH, DeviceHead, type_mixture


@dataclass(frozen=True)
class MlpConfig:
    """What the control is made of."""

    units: UnitKind = "groups"
    """What gets a device: groups of ops, co-located ops ("paper"), or ops alone."""
    hidden: Width = 64
    """Width of the layers."""
    max_devices: Width = 8
    """The most devices that a cluster of the training may have.
    The policy then places on as many devices as the largest cluster of its training has, or fewer."""


class MlpPolicy(IndependentPolicy):
    """The network of the control: two dense layers over a unit's types and features, then logits over devices."""

    def __init__(self, config: MlpConfig) -> None:
        super().__init__(config.units, config.max_devices)
        self.types = nn.Embedding(TYPE_BUCKETS, TYPE_WIDTH)
        self.mlp = mlp([TYPE_WIDTH + len(UNIT_FEATURES), config.hidden, config.hidden])
        self.norm = nn.LayerNorm(config.hidden)
        self.head = DeviceHead(config.hidden, config.max_devices)

    def forward(self, graph: OneShotInput) -> Tensor:
        """Return the logits (U, D)."""
        x = self.norm(self.mlp(torch.cat([type_mixture(self.types, graph), graph.features], -1)))
        return self.head(x, self.head.embeddings(graph), graph.pair[..., None])
