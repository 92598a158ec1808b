"""Grouper and placer: a feed-forward network puts each op into a group, a sequence-to-sequence network places groups.

Mirhoseini et al., "A Hierarchical Model for Device Placement" (HDP), ICLR 2018; Liu et al. 2019, doi
10.1145/3318265.3318270. One reward trains both. Beyond the papers: groups begin as stretches of the topological order
(`prior`, a learned weight), since groups drawn at random cost so much traffic that there is little to learn from; and
devices have features, so that up to `max_devices` of any mix are served.

Legend: U units, K samples, G groups, M arcs between units, D devices, H hidden, F features of a unit.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from placeto.distributed import Randomness
from placeto.nn import mlp
from placeto.nn_sequence import SequencePlacer
from placeto.nn_units import TYPE_WIDTH, UnitEncoder, gumbel_noise, log_prob_and_entropy, type_mixture
from placeto.op_features import UNIT_FEATURES, OneShotInput, UnitKind
from placeto.policies.base import OneShotPolicy, Sample


@dataclass(frozen=True)
class GrouperConfig:
    """What the grouper + placer policy is made of."""

    units: UnitKind = "ops"
    """What the grouper assigns: ops, the paper's co-located ops, or groups of `placeto.grouping`."""
    groups: int = 32
    """Number of groups; the paper has 256."""
    prior: float = 1.0
    """How strongly groups begin as stretches of the topological order; 0 = not at all, as in the paper."""
    hidden: int = 64
    """Width of embeddings and of the LSTMs."""
    max_devices: int = 8
    """Clusters of up to so many devices can be placed on."""


class GrouperPolicy(OneShotPolicy):
    """Decides a group for every unit, then a device for every group: A = U + G decisions a sample.

    The device of a group without units matters to nothing: its log-probability and entropy count as 0.
    """

    def __init__(self, config: GrouperConfig) -> None:
        super().__init__(config.units, config.max_devices)
        groups, hidden = config.groups, config.hidden
        self.groups = groups
        self.encoder = UnitEncoder(hidden)
        self.grouper = nn.Linear(hidden, groups)
        nn.init.normal_(self.grouper.weight, std=0.1 * hidden**-0.5)
        nn.init.zeros_(self.grouper.bias)
        self.prior = nn.Parameter(torch.tensor(float(config.prior)))
        self.types = nn.Embedding(self.encoder.types.num_embeddings, TYPE_WIDTH)
        self.embed = mlp([TYPE_WIDTH + len(UNIT_FEATURES) + 1 + 2 * groups, hidden, hidden])
        self.placer = SequencePlacer(hidden, config.max_devices)

    @torch.no_grad()
    def sample(self, graph: OneShotInput, count: int, generator: Randomness | None) -> Sample:
        """Groups of all units at once, then devices group by group."""
        self.check(graph)
        logits = self._group_logits(graph)
        noise = gumbel_noise((count, *logits.shape), generator, logits)
        group = (logits + noise).argmax(-1)  # (K, U)
        x, pair, empty = self._describe(graph, group)
        device, log_prob = self.placer.sample(x, self.placer.head.embeddings(graph), pair, count, generator)
        group_log_prob, _ = log_prob_and_entropy(logits.expand(count, -1, -1), group)
        log_prob = torch.cat([group_log_prob, log_prob.masked_fill(empty, 0.0)], 1)
        return Sample(torch.cat([group, device], 1), log_prob, device.gather(1, group))

    def noise_shapes(self, graph: OneShotInput) -> tuple[tuple[int, int], ...]:
        """A number for each unit and group, then for each group and device."""
        return (graph.num_units, self.groups), (self.groups, graph.num_devices)

    def score(self, graph: OneShotInput, action: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probabilities (K, U + G) of groups and devices, and mean entropies (K,)."""
        group, device = action[:, : graph.num_units], action[:, graph.num_units :]
        logits = self._group_logits(graph)
        group_log_prob, group_entropy = log_prob_and_entropy(logits.expand(len(action), -1, -1), group)
        x, pair, empty = self._describe(graph, group)
        log_prob, entropy = self.placer.score(x, self.placer.head.embeddings(graph), pair, device)
        log_prob, entropy = log_prob.masked_fill(empty, 0.0), entropy.masked_fill(empty, 0.0)
        return torch.cat([group_log_prob, log_prob], 1), torch.cat([group_entropy, entropy], 1).mean(1)

    def imitation(self, graph: OneShotInput, placement: Tensor) -> Tensor:
        """Loss of given placements (K, U), of the placer alone.

        Each group of the most likely grouping should go where most of its units are, an empty one to the first device:
        what is fed back to the decoder must look as it does when sampling.
        """
        group = self._group_logits(graph).detach().argmax(-1).expand(len(placement), -1)
        slot = (torch.arange(len(placement), device=group.device)[:, None] * self.groups + group).flatten()
        votes = group.new_zeros(len(placement) * self.groups, graph.num_devices)
        votes.index_put_((slot, placement.flatten()), torch.ones_like(slot), accumulate=True)
        device = votes.argmax(-1).view(len(placement), -1)
        x, pair, _ = self._describe(graph, group)
        log_prob, _ = self.placer.score(x, self.placer.head.embeddings(graph), pair, device)
        return -log_prob.mean()

    def _group_logits(self, graph: OneShotInput) -> Tensor:
        """(U, G) logits of the grouper."""
        place = torch.arange(graph.num_units, device=graph.features.device) / graph.num_units * self.groups
        centre = torch.arange(self.groups, device=place.device) + 0.5
        near = -((place[:, None] - centre) ** 2)
        return self.grouper(self.encoder(graph)) + self.prior * near

    def _describe(self, graph: OneShotInput, group: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Embeddings (K, G, H) of groups (K, U), their relative times (K, G, D), and which are empty (K, G).

        A group is described by its mix of op types, the mean features of its units, their number, and how many arcs
        go to and come from each other group.
        """
        count, groups = len(group), self.groups
        units = torch.cat([type_mixture(self.types, graph), graph.features], -1)
        slot = group + groups * torch.arange(count, device=group.device)[:, None]  # (K, U) into K * G
        members = torch.bincount(slot.flatten(), minlength=count * groups).to(units.dtype)
        share = members.clamp(min=1)[:, None]

        def mean(values: Tensor) -> Tensor:
            total = values.new_zeros(count * groups, values.shape[1])
            return total.index_add(0, slot.flatten(), values.repeat(count, 1)) / share

        arc = slot[:, graph.edges[0]] * groups + group[:, graph.edges[1]]  # (K, M) into K * G * G
        arcs = torch.bincount(arc.flatten(), minlength=count * groups * groups).to(units.dtype)
        adjacency = torch.log1p(arcs).view(count, groups, groups)
        described = torch.cat([mean(units), torch.log1p(members)[:, None]], -1).view(count, groups, -1)
        x = self.embed(torch.cat([described, adjacency, adjacency.transpose(1, 2)], -1))
        return x, mean(graph.pair).view(count, groups, -1), members.view(count, groups) == 0
