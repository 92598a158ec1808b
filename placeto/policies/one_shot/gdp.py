"""GDP: GraphSAGE embeds all units, and a Transformer-XL without positions places all of them at once.

Zhou et al., "GDP: Generalized Device Placement for Dataflow Graphs", 2019, arXiv 1910.01578. Units are read in
topological order, in segments. Superposition lets one set of parameters serve many graphs. Beyond the paper, messages
along the arcs and messages against them have weights of their own. Also beyond the paper, devices have features, so the
policy can place on any mix of up to `max_devices` devices.

Legend: U units, D devices, H hidden.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from placeto.plumbing.ranges import Count, Depth, Width
from placeto.policies.one_shot.inputs import OneShotInput, UnitKind
from placeto.policies.one_shot.one_shot_policy import IndependentPolicy
from placeto.policies.one_shot.segments import SegmentLayer
from placeto.policies.one_shot.unit_layers import DeviceHead, UnitEncoder


@dataclass(frozen=True)
class GdpConfig:
    """What the GDP policy is made of."""

    units: UnitKind = "groups"
    """What gets a device: groups of ops, co-located ops ("paper"), or ops alone, as in the paper."""
    hidden: Width = 64
    """Width of the embeddings."""
    rounds: Depth = 3
    """Layers of GraphSAGE; 0 = none."""
    layers: Depth = 2
    """Layers of the Transformer-XL; 0 = none."""
    heads: Count = 4
    """Attention heads."""
    segment: Count = 128
    """Units of a segment: attention's memory grows with it."""
    superposition: bool = True
    """Whether dense layers are gated by the graph's embedding."""
    max_devices: Width = 8
    """The most devices that a cluster of the training may have.
    The policy then places on as many devices as the largest cluster of its training has, or fewer."""


class GdpPolicy(IndependentPolicy):
    """The network of GDP: embeds all units in one forward pass, and decides independently, given the embeddings."""

    def __init__(self, config: GdpConfig) -> None:
        super().__init__(config.units, config.max_devices)
        hidden = config.hidden
        self.encoder = UnitEncoder(hidden)
        self.along = _sage(config, "source_to_target")
        self.against = _sage(config, "target_to_source")
        self.norms = nn.ModuleList(nn.LayerNorm(hidden) for _ in range(config.rounds))
        condition = hidden if config.superposition else 0
        self.segments = nn.ModuleList(
            SegmentLayer(hidden, config.heads, config.segment, condition) for _ in range(config.layers)
        )
        self.norm = nn.LayerNorm(hidden)
        self.head = DeviceHead(hidden, config.max_devices)

    def forward(self, graph: OneShotInput) -> Tensor:
        """Return the logits (U, D)."""
        x = self.encoder(graph)
        for along, against, norm in zip(self.along, self.against, self.norms, strict=True):
            y = norm(x)
            x = x + torch.relu(along(y, graph.edges) + against(y, graph.edges))
        condition = x.mean(0)
        for layer in self.segments:
            x = layer(x, condition)
        return self.head(self.norm(x), self.head.embeddings(graph), graph.pair[..., None])


def _sage(config: GdpConfig, flow: str) -> nn.ModuleList:
    """Make layers of GraphSAGE with max-pooling (Hamilton et al. 2017, arXiv 1706.02216), for one way of the arcs."""
    from torch_geometric.nn import SAGEConv  # imported here, because that takes seconds

    width = config.hidden
    return nn.ModuleList(SAGEConv(width, width, aggr="max", project=True, flow=flow) for _ in range(config.rounds))
