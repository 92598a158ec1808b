"""The Placeto of the paper: a traversal in topological order, the current node's device from a fixed head.

Addanki et al., "Placeto: Learning Generalizable Device Placement Algorithms for Distributed Machine Learning",
NeurIPS 2019, arXiv 1906.08879, section 3.2. Features of a node: run time, output size, placement, visited and current
flags. Messages go along and against the arcs; what lies before, after and beside a node is pooled.

Legend: V nodes of all graphs of a batch together, D devices of the largest cluster, H hidden.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch_geometric.data import Data

from placeto.environment.columns import NODE
from placeto.environment.tensors import reach_matrix
from placeto.policies.base import PolicyError
from placeto.policies.message_passing import TwoWayMessagePassing, mlp
from placeto.policies.pooling import NeighbourhoodPooling

SIZES = [NODE.time, NODE.transfer_out]  # relative to the largest of the graph, so that they differ alike in all graphs
FLAGS = [NODE.visited, NODE.is_current]


@dataclass(frozen=True)
class PlacetoPaperConfig:
    """What the paper's policy is made of."""

    hidden: int = 48
    """Width of the embeddings."""
    rounds: int = 2
    """Rounds of messages; 0 = none, an ablation of the paper."""
    devices: int = 4
    """Width of the head: clusters of up to so many devices can be placed on."""


class PlacetoPaperPolicy(nn.Module):
    """Scores the devices of every node; the environment's traversal says which node is asked."""

    def __init__(self, config: PlacetoPaperConfig) -> None:
        super().__init__()
        self.config = config
        hidden = config.hidden
        self.encoder = mlp([len(SIZES) + len(FLAGS) + config.devices, hidden, hidden])
        self.message_passing = TwoWayMessagePassing(hidden, config.rounds)
        self.pooling = NeighbourhoodPooling(hidden)
        self.head = mlp([2 * hidden, 64, config.devices])

    def forward(self, data: Data) -> tuple[Tensor, Tensor]:
        """Logits (V, D), and zeros (V, D): what a move would change is not predicted.

        Computed where the parameters are; the answer comes back to where the observation is.

        Raises:
            PolicyError: a cluster has more devices than the head.
        """
        devices, width, here = data.pair.shape[1], self.config.devices, next(self.parameters()).device
        if devices > width:
            raise PolicyError(
                f"the policy was made for {width} devices at most, the cluster has {devices}: "
                "train with a larger policy.devices"
            )
        reach, seen = reach_matrix(data).to(here), copy(data).to(here)
        sizes = seen.x[:, SIZES]
        of = seen.batch[:, None].expand_as(sizes)
        largest = sizes.new_zeros(seen.num_graphs, len(SIZES)).scatter_reduce_(0, of, sizes, "amax")
        placed = nn.functional.one_hot(seen.current, width).to(sizes.dtype)
        h = self.encoder(torch.cat([sizes / largest.clamp(min=1e-9)[seen.batch], seen.x[:, FLAGS], placed], -1))
        h = self.message_passing(h, seen.edge_index)
        h = torch.cat([h, self.pooling(h, reach, seen.batch)], -1)
        logits = self.head(h)[:, :devices].to(data.x.device)
        return logits, torch.zeros_like(logits)
