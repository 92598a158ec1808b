"""The policy of `placeto`: an iterative policy that moves one node at a time, with messages between the nodes.

After Addanki et al., "Placeto: Learning Generalizable Device Placement Algorithms for Distributed Machine Learning",
NeurIPS 2019, arXiv 1906.08879. The paper's own policy is `placeto.policies.placeto_paper`. The policy here reads
features of the schedule and scores (node, device) pairs, so one set of parameters serves any number and mix of devices.

Legend: V nodes of all graphs of a batch together, M arcs, D devices, L chosen pairs, H hidden.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from placeto.environment.columns import EDGE, NODE, PAIR
from placeto.plumbing.ranges import Depth, Weight, Width
from placeto.policies.compiled import FINE, FINE_RANGE
from placeto.policies.message_passing import EdgeMessagePassing, mlp

if TYPE_CHECKING:
    from torch_geometric.data import Data


@dataclass(frozen=True)
class PlacetoConfig:
    """What the Placeto policy is made of."""

    hidden: Width = 32
    """Width of the embeddings."""
    rounds: Depth = 2
    """Rounds of messages; 0 = none."""
    change_weight: Weight = 100.0
    """The score (logit) of a move is minus this number times the predicted relative change of the makespan."""


class PlacetoPolicy(nn.Module):
    """Scores (node, device) pairs of a batch of graphs.

    A node's embedding is computed from the node's features, from the features of its pair with its present device, and
    from messages. From the embedding and the features of a (node, device) pair, the policy predicts the relative change
    of the makespan by this one move. The prediction can be trained on labels. ``logit = -change_weight * change``.
    """

    def __init__(self, config: PlacetoConfig) -> None:
        super().__init__()
        self.config = config
        hidden, nodes, pairs = config.hidden, 2 * len(NODE), 2 * len(PAIR)
        self.from_node = nn.Linear(nodes, hidden)
        self.from_own = nn.Linear(pairs, hidden, bias=False)
        self.messages = nn.ModuleList(EdgeMessagePassing(hidden, len(EDGE)) for _ in range(config.rounds))
        self.from_messages = nn.Linear(hidden, hidden, bias=False) if config.rounds else None
        self.from_pair = nn.Linear(pairs, hidden, bias=False)
        self.head = mlp([hidden, 64, 64, 1])

    def forward(self, data: Data) -> tuple[Tensor, Tensor]:
        """Return logits (V, D) and predicted relative changes (V, D) of the makespan.

        Both are 0 at each node's current device and for moves that aren't offered. The network computes on the torch
        device of its parameters; the results are on the torch device of the observation.
        """
        slot, device = data.offered.nonzero(as_tuple=True)
        away = device != data.current[slot]
        slot, device = slot[away], device[away]
        change = data.pair.new_zeros(data.offered.shape).index_put((slot, device), self.changes(data, slot, device))
        return -self.config.change_weight * change, change

    def changes(self, data: Data, slot: Tensor, device: Tensor) -> Tensor:
        """Predict the relative change of the makespan by each of L moves: node `slot` (L,) to `device` (L,).

        Returns (L,) floats on the torch device of the observation.
        """
        there, here = data.x.device, next(self.parameters()).device
        if there != here:
            return self.changes(copy(data).to(here), slot.to(here), device.to(here)).to(there)
        own = data.pair[torch.arange(len(data.current), device=here), data.current]
        base = self.from_node(two_scales(data.x)) + self.from_own(two_scales(own))
        if self.from_messages is not None:
            z = torch.relu(base)
            for messages in self.messages:
                z = messages(z, data.edge_index, data.edge_attr)
            base = base + self.from_messages(z)
        pair = two_scales(data.pair[slot, device])
        out = self.head(torch.relu(base[slot] + self.from_pair(pair)))
        return out[:, 0] * 0.1  # typical changes are a few per cent, so the head's outputs are about 1


def two_scales(x: Tensor) -> Tensor:
    """Append each feature on a logarithmic scale: (..., F) -> (..., 2 F), by `FINE` and `FINE_RANGE`.

    Two moves often differ by a thousandth of the makespan only, while features range from 0 to 1.
    """
    return torch.cat([x, torch.asinh(x / FINE) / FINE_RANGE], -1)
