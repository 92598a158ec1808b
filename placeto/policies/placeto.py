"""Placeto: messages between (node, device) pairs, an iterative policy that moves one node at a time.

After Addanki et al., "Placeto: Learning Generalizable Device Placement Algorithms for Distributed Machine Learning",
NeurIPS 2019, arXiv 1906.08879; the paper's own policy is `placeto.policies.placeto_paper`. This one reads the
schedule's features and scores (node, device) pairs, so one set of parameters serves any number and mix of devices.

Legend: V nodes of all graphs of a batch together, M arcs, D devices, H hidden.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch_geometric.data import Data

from placeto.environment.columns import EDGE, NODE, PAIR
from placeto.policies.message_passing import PairMessagePassing, mlp
from placeto.policies.scales import FINE, FINE_RANGE


@dataclass(frozen=True)
class PlacetoConfig:
    """What the Placeto policy is made of."""

    hidden: int = 32
    """Width of the embeddings."""
    rounds: int = 2
    """Rounds of messages; 0 = none."""
    change_weight: float = 100.0
    """Weight of the predicted relative change of the makespan in the logit."""


class PlacetoPolicy(nn.Module):
    """Scores every (node, device) pair of a batch of graphs.

    ``logit = agreement - change_weight * change``, both less their value at the node's current device: `agreement` is
    free, `change` predicts the relative change of the makespan by that one move (and can be trained on labels).
    """

    def __init__(self, config: PlacetoConfig) -> None:
        super().__init__()
        self.config = config
        hidden, nodes, pairs = config.hidden, 2 * len(NODE), 2 * len(PAIR)
        self.from_node = nn.Linear(nodes, hidden)
        self.from_pair = nn.Linear(pairs, hidden, bias=False)
        self.from_own = nn.Linear(pairs, hidden, bias=False)
        self.pair_messages = nn.ModuleList(PairMessagePassing(hidden, len(EDGE)) for _ in range(config.rounds))
        self.head = nn.Sequential(nn.LayerNorm(hidden), *mlp([hidden, 64, 64, 2]))
        self.shortcut = mlp([hidden, 64, 2])

    def forward(self, data: Data) -> tuple[Tensor, Tensor]:
        """Logits (V, D) and predicted relative changes (V, D); both zero at the node's current device.

        Computed where the parameters are; the answer comes back to where the observation is.
        """
        there, here = data.x.device, next(self.parameters()).device
        if there != here:
            logits, change = self(copy(data).to(here))
            return logits.to(there), change.to(there)
        node, pair, own = two_scales(data.x), two_scales(data.pair), data.current[:, None]
        at_home = pair.gather(1, own[..., None].expand(-1, 1, pair.shape[2]))
        z = first = torch.relu(self.from_node(node)[:, None] + self.from_pair(pair) + self.from_own(at_home))
        for messages in self.pair_messages:
            z = messages(z, own, data.edge_index, data.edge_attr)
        out = self.head(z) + self.shortcut(first)  # (V, D, 2)
        out = out - out.gather(1, own[..., None].expand(-1, 1, 2))
        change = out[..., 1] * 0.1  # typical changes are a few per cent: keep the head's outputs near one
        return out[..., 0] - self.config.change_weight * change, change


def two_scales(x: Tensor) -> Tensor:
    """Features (..., F) with their logarithms beside them: (..., 2 F).

    What decides between two moves is often a thousandth of the makespan, while features reach from 0 to 1.
    """
    return torch.cat([x, torch.asinh(x / FINE) / FINE_RANGE], -1)
