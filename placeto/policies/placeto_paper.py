"""The Placeto of the paper: a traversal in topological order, the current node's device from a fixed head.

Addanki et al., "Placeto: Learning Generalizable Device Placement Algorithms for Distributed Machine Learning",
NeurIPS 2019, arXiv 1906.08879, section 3.2. Features of a node stand in `placeto.environment.walk`. Messages go along
and against the arcs; what lies before, after and beside the current node is pooled. Details that the paper leaves open
are those of its code (github.com/aravic/generalizable-device-placement); docs/placeto-paper.md names what differs.

Legend: S states of one graph, G nodes, D devices, F = 5 + D features of a node, M arcs, K networks side by side.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from placeto.environment.walk import NUM_FEATURES, Walk
from placeto.policies.base import PolicyError
from placeto.policies.neighbour_sums import neighbour_sums
from placeto.ranges import Depth, Width


@dataclass(frozen=True)
class PlacetoPaperConfig:
    """What the paper's policy is made of."""

    rounds: Depth = 8
    """Rounds of messages; 0 = none, an ablation of the paper."""
    devices: Width = 4
    """Width of the head: clusters of up to so many devices can be trained on.
    The policy then places on as many devices as the largest cluster of its training has, or fewer."""


@dataclass(frozen=True, eq=False)
class Surroundings:
    """What the policy reads of a graph, whatever the placement. Means, as `normalize_aggs` of the paper's code."""

    arcs: np.ndarray  # (2, M) int64: from which node to which
    share: Tensor  # (2, 1, G, 1) float32: 1 / how many a node hears of, along the arcs and against them; 0 if none
    related: Tensor  # (G, 3, G) float32: [i] has 1 / their number for nodes that come before, after and beside node i

    @classmethod
    def of(cls, walk: Walk) -> Surroundings:
        """Of a graph."""
        size, arcs, reach = walk.num_groups, walk.instance.pairs, walk.instance.reach
        heard = np.stack([np.bincount(arcs[1], minlength=size), np.bincount(arcs[0], minlength=size)])
        beside = ~(reach | reach.T) & ~np.eye(size, dtype=bool)
        related = np.stack([reach.T, reach, beside], 1)
        shares = _shares(related.sum(-1, keepdims=True)) * torch.from_numpy(related)
        return cls(arcs, _shares(heard)[:, None, :, None], shares)


def _shares(number: np.ndarray) -> Tensor:
    """1 / number, and 0 for 0."""
    return torch.from_numpy(((number > 0) / np.maximum(number, 1)).astype(np.float32))


class Networks(nn.Module):
    """K networks of the same sizes with ReLU between their layers and, if asked, after the last.

    Nodes are columns: matrices as narrow as these are multiplied three times as fast in that order.

    Shapes: ``x`` (K, I, N) -> (K, O, N).
    """

    def __init__(self, count: int, sizes: list[int], *, last_activation: bool) -> None:
        super().__init__()
        self.layers: list[tuple[nn.Parameter, nn.Parameter, bool]] = []
        for number, (into, out) in enumerate(itertools.pairwise(sizes), 2):
            bound = (6.0 / (into + out)) ** 0.5  # Glorot and Bengio 2010, equation 16
            weight = nn.Parameter(torch.empty(count, out, into).uniform_(-bound, bound))
            bias = nn.Parameter(torch.zeros(count, out, 1))
            self.register_parameter(f"weight{number - 2}", weight)
            self.register_parameter(f"bias{number - 2}", bias)
            self.layers.append((weight, bias, last_activation or number < len(sizes)))

    def forward(self, x: Tensor) -> Tensor:
        """(K, O, N)."""
        for weight, bias, activation in self.layers:
            x = torch.baddbmm(bias, weight, x)
            if activation:
                x = torch.relu_(x)
        return x


class PlacetoPaperPolicy(nn.Module):
    """Logits over devices of the current node."""

    def __init__(self, config: PlacetoPaperConfig) -> None:
        super().__init__()
        self.config = config
        width = NUM_FEATURES + config.devices
        self.encoder = Networks(1, [width] * 4, last_activation=False)
        self.message, self.update = (Networks(2, [width] * 3, last_activation=True) for _ in range(2))
        self.inner, self.outer = (Networks(3, [2 * width] * 3, last_activation=True) for _ in range(2))
        self.head = Networks(1, [8 * width, 8 * width, config.devices], last_activation=False)

    def forward(self, features: Tensor, current: Tensor, around: Surroundings) -> Tensor:
        """Logits (S, D) of states of one graph, with features (S, G, F) and a current node (S,) each.

        Raises:
            PolicyError: the cluster has more devices than the head.
        """
        states, nodes, known = features.shape
        devices, width = known - NUM_FEATURES, NUM_FEATURES + self.config.devices
        if devices > self.config.devices:
            raise PolicyError(
                f"the policy was made for {self.config.devices} devices at most, the cluster has {devices}: "
                "train with a larger policy.devices"
            )
        x = nn.functional.pad(features, (0, width - known)).permute(2, 1, 0).reshape(1, width, nodes * states)
        first = self.encoder(x).expand(2, -1, -1)
        h = first
        share = around.share.expand(-1, -1, -1, states).reshape(2, 1, -1)
        for _ in range(self.config.rounds):
            heard = neighbour_sums(self.message(h).view(2, width, nodes, states), around.arcs).view(2, width, -1)
            h = self.update(heard * share) * (share > 0) + first
        both = h.reshape(2 * width, nodes, states)
        own = both[:, current, torch.arange(states)]  # (2F, S)
        within = self.inner(both.view(1, 2 * width, -1).expand(3, -1, -1)).view(3, 2 * width, nodes, states)
        pooled = (within * around.related[current].permute(1, 2, 0)[:, None]).sum(2)  # (3, 2F, S)
        logits: Tensor = self.head(torch.cat([self.outer(pooled).view(-1, states), own])[None])[0]
        return logits.T[:, :devices]
