"""The policy of the Placeto paper: it visits the nodes in topological order, and chooses the device of each.

Addanki et al., "Placeto: Learning Generalizable Device Placement Algorithms for Distributed Machine Learning",
NeurIPS 2019, arXiv 1906.08879, section 3.2. `placeto.environment.walk` makes the features of the nodes. Messages go
along and against the arcs. The embeddings of the nodes before, after and beside the current node are pooled. A head of
fixed width gives the logits. Details that the paper leaves open are those of its code
(github.com/aravic/generalizable-device-placement); docs/placeto-paper.md names the differences.

Legend: S states of one graph, G nodes, D devices, F = 5 + D features of a node, W = 5 + devices of the head, M arcs, K
networks side by side, I inputs, O outputs and N columns of a network.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from placeto.environment.walk import NUM_FEATURES, Walk
from placeto.errors import PlacerError
from placeto.plumbing.ranges import Depth, Width
from placeto.policies.neighbour_sums import neighbour_sums


@dataclass(frozen=True)
class PlacetoPaperConfig:
    """Settings of the paper's policy."""

    rounds: Depth = 8
    """Rounds of messages. 0 = no messages, an ablation of the paper."""
    devices: Width = 4
    """Width of the head: the most devices that a cluster of the training may have.
    The policy then places on as many devices as the largest cluster of its training has, or fewer."""


@dataclass(frozen=True, eq=False)
class Surroundings:
    """What the policy reads of a graph, independent of the placement.

    Messages and pooled embeddings are means, as with `normalize_aggs` in the paper's code. `share` and `related` have
    the weights of these means.
    """

    arcs: np.ndarray  # (2, M) int64, source and target node of each arc
    share: Tensor  # (2, 1, G, 1) float32, 1 / messages that a node receives along and against the arcs; 0 if none
    related: Tensor  # (G, 3, G) float32, [i, k, j] = 1 / number of such nodes if j is before (k = 0), after, beside i

    @classmethod
    def of(cls, walk: Walk) -> Surroundings:
        """Compute the surroundings of the walk's graph."""
        size, arcs, reach = walk.num_groups, walk.instance.pairs, walk.instance.reach
        heard = np.stack([np.bincount(arcs[1], minlength=size), np.bincount(arcs[0], minlength=size)])
        beside = ~(reach | reach.T) & ~np.eye(size, dtype=bool)
        related = np.stack([reach.T, reach, beside], 1)
        shares = _shares(related.sum(-1, keepdims=True)) * torch.from_numpy(related)
        return cls(arcs, _shares(heard)[:, None, :, None], shares)


def _shares(number: np.ndarray) -> Tensor:
    """Return 1 / number as float32, and 0 where the number is 0."""
    return torch.from_numpy(((number > 0) / np.maximum(number, 1)).astype(np.float32))


class Networks(nn.Module):
    """K networks of the same sizes, with ReLU between their layers and, with `last_activation`, after the last one.

    Each column of the input is a node in a state: narrow matrices are multiplied three times as fast in this layout.

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
        """Apply the networks: (K, I, N) -> (K, O, N)."""
        for weight, bias, activation in self.layers:
            x = torch.baddbmm(bias, weight, x)
            if activation:
                x = torch.relu_(x)
        return x


class PlacetoPaperPolicy(nn.Module):
    """The network of the paper's policy: logits over the devices of the current node."""

    def __init__(self, config: PlacetoPaperConfig) -> None:
        super().__init__()
        self.config = config
        width = NUM_FEATURES + config.devices
        self.encoder = Networks(1, [width] * 4, last_activation=False)
        self.message, self.update = (Networks(2, [width] * 3, last_activation=True) for _ in range(2))
        self.inner, self.outer = (Networks(3, [2 * width] * 3, last_activation=True) for _ in range(2))
        self.head = Networks(1, [8 * width, 8 * width, config.devices], last_activation=False)

    def forward(self, features: Tensor, current: Tensor, around: Surroundings) -> Tensor:
        """Return the logits (S, D) of S states of one graph.

        Args:
            features: (S, G, F) float32, features of the nodes in each state.
            current: (S,) int64, current node of each state.
            around: what the policy reads of the graph.

        Raises:
            PlacerError: the cluster has more devices than the head.
        """
        states, nodes, known = features.shape
        devices, width = known - NUM_FEATURES, NUM_FEATURES + self.config.devices
        if devices > self.config.devices:
            raise PlacerError(
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
        own = both[:, current, torch.arange(states)]  # (2 W, S)
        within = self.inner(both.view(1, 2 * width, -1).expand(3, -1, -1)).view(3, 2 * width, nodes, states)
        pooled = (within * around.related[current].permute(1, 2, 0)[:, None]).sum(2)  # (3, 2 W, S)
        seen = torch.cat([self.outer(pooled).view(-1, states), own])
        return self.head(seen[None])[0].T[:, :devices]
