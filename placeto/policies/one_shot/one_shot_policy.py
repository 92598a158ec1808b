"""The base classes of one-shot policies, which place a whole graph at once.

Legend: N ops and U units of a graph, D devices, K samples, A decisions of a sample.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from placeto.errors import PlacerError
from placeto.policies.one_shot.inputs import OneShotInput, UnitKind
from placeto.policies.one_shot.unit_layers import DeviceHead, gumbel_noise, log_prob_and_entropy

Noise = tuple[Tensor, ...]
"""Numbers that are added to the logits of K placements: one tensor (K, ...) for each kind of decision."""


@dataclass(frozen=True)
class Sample:
    """K placements of a problem, chosen by a one-shot policy. The sum of a row of `log_prob` is that of the sample."""

    action: Tensor  # (K, A) int64, all decisions
    log_prob: Tensor  # (K, A) float32, log-probability of each decision given the earlier ones of its sample
    placement: Tensor  # (K, U) int64, device of each unit


class OneShotPolicy(nn.Module):
    """A network that places a whole graph at once. A decision may depend on earlier decisions of the same sample."""

    def __init__(self, units: UnitKind, max_devices: float) -> None:
        super().__init__()
        self.units: UnitKind = units
        self.max_devices = max_devices  # infinite if the policy doesn't tell devices by number

    def sample(self, graph: OneShotInput, count: int, generator: torch.Generator | None) -> Sample:
        """Draw K = `count` placements, without gradients. If `generator` is None, each decision is the most likely one.

        Raises:
            PlacerError: the cluster has more devices than the policy was made for.
        """
        return self.decide([graph], [self.noise(graph, count, generator)])[0]

    def noise(self, graph: OneShotInput, count: int, generator: torch.Generator | None) -> Noise:
        """Draw Gumbel noise for K = `count` placements by `decide`; zeros without a generator.

        Raises:
            PlacerError: the cluster has more devices than the policy was made for.
        """
        self.check(graph)
        return tuple(gumbel_noise((count, *shape), generator, graph.features) for shape in self.noise_shapes(graph))

    @torch.no_grad()
    def decide(self, graphs: Sequence[OneShotInput], noise: Sequence[Noise]) -> list[Sample]:
        """Place several graphs, without gradients. Each decision is the one with the largest sum of logit and noise.

        Args:
            graphs: the graphs.
            noise: for each graph, noise of the shapes in `noise_shapes` for K placements; K may differ between graphs.

        Returns:
            For each graph its K placements.
        """
        alike, samples = defaultdict[tuple[int, int], list[int]](list), dict[int, Sample]()
        for i in sorted(range(len(graphs)), key=lambda i: -graphs[i].num_units):
            alike[len(noise[i][0]), graphs[i].num_devices].append(i)
        for which in alike.values():
            together = self.side_by_side([graphs[i] for i in which], [noise[i] for i in which])
            samples |= zip(which, together, strict=True)
        return [samples[i] for i in range(len(graphs))]

    @abstractmethod
    def side_by_side(self, graphs: Sequence[OneShotInput], noise: Sequence[Noise]) -> list[Sample]:
        """Do what `decide` does, for graphs with equally many samples and devices, the one with most units first."""

    def noise_shapes(self, graph: OneShotInput) -> tuple[tuple[int, int], ...]:
        """Return the shapes of the noise for one placement, one for each kind of decision, in the order of the draws.

        The shape here, (U, D), is that of a policy whose only decisions are the devices of units.
        """
        return ((graph.num_units, graph.num_devices),)

    @abstractmethod
    def score(self, graph: OneShotInput, action: Tensor) -> tuple[Tensor, Tensor]:
        """Return log-probabilities (K, A) of decisions (K, A), and the mean entropy (K,) of a decision, in nats."""

    def soften(self, temperature: float) -> None:
        """Divide the logits over devices by a temperature, by changing parameters. Above 1, samples differ more.

        Logits with a bound are divided before they are bounded; see `DeviceHead`.
        """
        for module in self.modules():
            if isinstance(module, DeviceHead):
                module.soften(temperature)

    def check(self, graph: OneShotInput) -> None:
        """Refuse a cluster of more devices than the policy was made for.

        Raises:
            PlacerError: the cluster has more devices than `max_devices`.
        """
        if graph.num_devices > self.max_devices:
            raise PlacerError(
                f"the policy was made for {self.max_devices} devices at most, the cluster has {graph.num_devices}: "
                "train with a larger policy.max_devices"
            )


class IndependentPolicy(OneShotPolicy):
    """A policy that chooses each unit's device independently, by logits (U, D) of one forward pass over the graph."""

    def side_by_side(self, graphs: Sequence[OneShotInput], noise: Sequence[Noise]) -> list[Sample]:
        """Place several graphs, with one forward pass for each; see `OneShotPolicy.decide`."""
        samples = []
        for graph, (each,) in zip(graphs, noise, strict=True):
            logits = self(graph)
            action = (logits + each).argmax(-1)
            samples.append(Sample(action, log_prob_and_entropy(logits, action)[0], action))
        return samples

    def score(self, graph: OneShotInput, action: Tensor) -> tuple[Tensor, Tensor]:
        """Return log-probabilities (K, U) and mean entropies (K,) in nats, from one forward pass."""
        log_prob, entropy = log_prob_and_entropy(self(graph), action)
        return log_prob, entropy.mean(-1)
