"""What a one-shot policy is: it places a whole graph at once.

Legend: N ops and U units of a graph, D devices, K samples, A decisions of a sample.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from placeto.policies.base import PolicyError
from placeto.policies.one_shot.inputs import OneShotInput, UnitKind
from placeto.policies.one_shot.layers import DeviceHead, gumbel_noise, log_prob_and_entropy
from placeto.policies.one_shot.randomness import Randomness

Noise = tuple[Tensor, ...]
"""What is added to the logits of K placements, one tensor (K, ...) for each kind of decision."""


@dataclass(frozen=True)
class Sample:
    """K answers of a one-shot policy to one problem."""

    action: Tensor  # (K, A) int64, all that was decided
    log_prob: Tensor  # (K, A) float32, of each decision given the earlier ones; a row's sum is that of its placement
    placement: Tensor  # (K, U) int64, device of each unit


class OneShotPolicy(nn.Module):
    """Places a whole graph at once. A decision may depend on earlier ones of the same sample."""

    def __init__(self, units: UnitKind, max_devices: int) -> None:
        super().__init__()
        self.units: UnitKind = units
        self.max_devices = max_devices

    def sample(self, graph: OneShotInput, count: int, generator: Randomness | None) -> Sample:
        """Draw K = `count` placements, without gradients; the most likely decisions one by one if `generator` is None.

        Raises:
            PolicyError: the cluster has more devices than the policy knows.
        """
        return self.decide([graph], [self.noise(graph, count, generator)])[0]

    def noise(self, graph: OneShotInput, count: int, generator: Randomness | None) -> Noise:
        """Gumbel noise for K = `count` placements, zeros without a generator; see `decide`.

        Raises:
            PolicyError: the cluster has more devices than the policy knows.
        """
        self.check(graph)
        return tuple(gumbel_noise((count, *shape), generator, graph.features) for shape in self.noise_shapes(graph))

    @abstractmethod
    def decide(self, graphs: Sequence[OneShotInput], noise: Sequence[Noise]) -> list[Sample]:
        """Placements of several graphs, without gradients: noise is added to logits before the largest is chosen."""

    def noise_shapes(self, graph: OneShotInput) -> tuple[tuple[int, int], ...]:
        """Shapes of the random numbers that each placement takes, in the order of the draws: one for (unit, device)."""
        return ((graph.num_units, graph.num_devices),)

    @abstractmethod
    def score(self, graph: OneShotInput, action: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probabilities (K, A) of given decisions (K, A), and the mean entropy (K,) of a decision, in nats."""

    def soften(self, temperature: float) -> None:
        """Divide the logits over devices by a temperature, for good: above 1, samples differ more."""
        for module in self.modules():
            if isinstance(module, DeviceHead):
                module.soften(temperature)

    def check(self, graph: OneShotInput) -> None:
        """Refuse a cluster of more devices than the policy knows.

        Raises:
            PolicyError: it has more.
        """
        if graph.num_devices > self.max_devices:
            raise PolicyError(
                f"the policy was made for {self.max_devices} devices at most, the cluster has {graph.num_devices}: "
                "train with a larger policy.max_devices"
            )


class IndependentPolicy(OneShotPolicy):
    """Decides about every unit by itself, given the logits (U, D) of one forward pass over the graph."""

    @torch.no_grad()
    def decide(self, graphs: Sequence[OneShotInput], noise: Sequence[Noise]) -> list[Sample]:
        """Placements from one forward pass a graph."""
        samples = []
        for graph, (each,) in zip(graphs, noise, strict=True):
            logits = self(graph)
            action = (logits + each).argmax(-1)
            samples.append(Sample(action, log_prob_and_entropy(logits, action)[0], action))
        return samples

    def score(self, graph: OneShotInput, action: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probabilities (K, U) and mean entropies (K,), from one forward pass."""
        log_prob, entropy = log_prob_and_entropy(self(graph), action)
        return log_prob, entropy.mean(-1)
