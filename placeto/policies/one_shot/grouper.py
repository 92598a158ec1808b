"""Grouper and placer: one network puts each unit into a group, and a sequence-to-sequence network places the groups.

Mirhoseini et al., "A Hierarchical Model for Device Placement" (HDP), ICLR 2018; Liu et al. 2019, doi
10.1145/3318265.3318270. One reward trains both networks. Beyond the papers, groups begin as stretches of the
topological order (`prior`, a learned weight), because groups drawn at random cost so much traffic that there is little
to learn from. Also beyond the papers, devices have features, so the policy can place on any mix of up to `max_devices`
devices.

Legend: U units, K samples, G groups, M arcs between units, D devices, H hidden, F features of a unit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from placeto.plumbing.ranges import Temperature, Weight, Width
from placeto.policies.message_passing import mlp
from placeto.policies.one_shot.inputs import NEIGHBOURS, UNIT_FEATURES, OneShotInput, UnitKind
from placeto.policies.one_shot.one_shot_policy import Noise, OneShotPolicy, Sample
from placeto.policies.one_shot.sequence import Elements, SequencePlacer
from placeto.policies.one_shot.unit_layers import TYPE_WIDTH, UnitEncoder, log_prob_and_entropy, type_mixture


@dataclass(frozen=True)
class GrouperConfig:
    """What the grouper + placer policy is made of."""

    units: UnitKind = "ops"
    """What the grouper assigns: ops, the paper's co-located ops, or groups of `placeto.problem.grouping`."""
    groups: Width = 32
    """Number of groups; the paper has 256."""
    prior: Weight = 8.0
    """How strongly the initial groups are stretches of the topological order; 0 = not at all, as in the paper. With a
    small value each sample puts neighbours on different devices, and the policy learns to use one device for all."""
    hidden: Width = 64
    """Width of embeddings and of the LSTMs."""
    feedback: bool = True
    """Whether the decoder sees where a group's inputs come from and each device's work so far, or, as in the papers,
    only the device of the last group."""
    bound: Weight = 0.0
    """Logits over devices stay between minus and plus this, by a hyperbolic tangent; 0 = they aren't bounded."""
    temperature: Temperature = 1.0
    """Logits over devices are divided by this before they are bounded."""
    max_devices: Width = 8
    """The most devices that a cluster of the training may have.
    The policy then places on as many devices as the largest cluster of its training has, or fewer."""


class GrouperPolicy(OneShotPolicy):
    """The networks of grouper and placer: A = U + G decisions for each sample.

    The first decisions are the group of each unit, and then come the devices of the groups. The device of a group
    without units has no effect: its log-probability and entropy count as 0.
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
        self.placer = SequencePlacer(hidden, config.max_devices, config.feedback, config.bound, config.temperature)

    def side_by_side(self, graphs: Sequence[OneShotInput], noise: Sequence[Noise]) -> list[Sample]:
        """Choose the groups of all units at once, then the devices group by group; see `OneShotPolicy.decide`."""
        logits = [self._group_logits(graph) for graph in graphs]
        groups = [(row + draw).argmax(-1) for row, (draw, _) in zip(logits, noise, strict=True)]  # (K, U) each
        described = [self._describe(graph, group) for graph, group in zip(graphs, groups, strict=True)]
        placed = self.placer.sample([elements for elements, _ in described], [draw for _, draw in noise])
        samples = []
        for row, group, (_, empty), (device, log_prob) in zip(logits, groups, described, placed, strict=True):
            group_log_prob, _ = log_prob_and_entropy(row, group)
            both = torch.cat([group_log_prob, log_prob.masked_fill(empty, 0.0)], 1)
            samples.append(Sample(torch.cat([group, device], 1), both, device.gather(1, group)))
        return samples

    def noise_shapes(self, graph: OneShotInput) -> tuple[tuple[int, int], ...]:
        """Return the shapes of the noise for one placement: (U, G) for the groups, then (G, D) for the devices."""
        return (graph.num_units, self.groups), (self.groups, graph.num_devices)

    def score(self, graph: OneShotInput, action: Tensor) -> tuple[Tensor, Tensor]:
        """Return log-probabilities (K, U + G) of groups and devices, and the mean entropies (K,) in nats.

        A mean entropy is the sum of the devices' entropies, divided by the number U + G of all decisions.
        The groups' entropies are left out, so that no entropy bonus favours random groups. These cost so much traffic
        that one device for all units would be best.
        """
        group, device = action[:, : graph.num_units], action[:, graph.num_units :]
        group_log_prob, _ = log_prob_and_entropy(self._group_logits(graph), group)
        elements, empty = self._describe(graph, group)
        log_prob, entropy = self.placer.score(elements, device)
        log_prob, entropy = log_prob.masked_fill(empty, 0.0), entropy.masked_fill(empty, 0.0)
        return torch.cat([group_log_prob, log_prob], 1), entropy.sum(1) / action.shape[1]

    def _group_logits(self, graph: OneShotInput) -> Tensor:
        """Return the logits (U, G) of the grouper, which include the prior."""
        place = torch.arange(graph.num_units, device=graph.features.device) / graph.num_units * self.groups
        centre = torch.arange(self.groups, device=place.device) + 0.5
        near = -((place[:, None] - centre) ** 2)
        return self.grouper(self.encoder(graph)) + self.prior * near

    def _describe(self, graph: OneShotInput, group: Tensor) -> tuple[Elements, Tensor]:
        """Describe groups (K, U) as K sequences for the placer; and return which groups are empty, (K, G) bool.

        The description of a group has the mean embedding of its op types, the mean features of its units, the logarithm
        of their number, and logarithms of the numbers of arcs to and from each group. Arcs inside the group are among
        them.
        """
        count, groups = len(group), self.groups
        units = torch.cat([type_mixture(self.types, graph), graph.features], -1)
        slot = group + groups * torch.arange(count, device=group.device)[:, None]  # (K, U) into K * G
        members = torch.bincount(slot.flatten(), minlength=count * groups).to(units.dtype)

        def total(values: Tensor) -> Tensor:
            """Sum values (U, ...) over the units of each group of each sample: (K * G, ...)."""
            sums = values.new_zeros(count * groups, *values.shape[1:])
            return sums.index_add(0, slot.flatten(), values.repeat(count, *(1,) * (values.dim() - 1)))

        arc = slot[:, graph.edges[0]] * groups + group[:, graph.edges[1]]  # (K, M) into K * G * G
        arcs = torch.bincount(arc.flatten(), minlength=count * groups * groups).to(units.dtype)
        arcs = arcs.view(count, groups, groups)
        adjacency = torch.log1p(arcs)
        share = members.clamp(min=1)[:, None]
        described = torch.cat([total(units) / share, torch.log1p(members)[:, None]], -1).view(count, groups, -1)
        earlier = arcs.triu(1).transpose(1, 2)  # (K, G, G), arcs from each group before this one
        shares, producers = earlier.topk(min(NEIGHBOURS, groups), -1)
        elements = Elements(
            x=self.embed(torch.cat([described, adjacency, adjacency.transpose(1, 2)], -1)),
            devices=self.placer.head.embeddings(graph),
            time=(total(graph.pair) / share).view(count, groups, -1),
            work=total(graph.work).view(count, groups) * graph.num_devices,
            producers=producers,
            shares=shares / shares.sum(-1, keepdim=True).clamp(min=1),
        )
        return elements, members.view(count, groups) == 0
