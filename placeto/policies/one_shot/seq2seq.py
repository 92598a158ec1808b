"""The sequence-to-sequence placer: an LSTM with attention chooses the devices of units, one after another.

Mirhoseini et al., "Device Placement Optimization with Reinforcement Learning" (ColocRL), ICML 2017, arXiv 1706.04972.
Units are embedded by op types, sizes and neighbours, and read in topological order. Beyond the paper, devices have
features, so the policy can place on any mix of up to `max_devices` devices; and the decoder reads the encoder's output
for the unit that it places. The default units are groups of ops, or stretches of the topological order, in place of the
paper's co-located ops.

Legend: U units, K samples, D devices, H hidden.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from placeto.plumbing.ranges import Width
from placeto.policies.one_shot.inputs import OneShotInput, UnitKind
from placeto.policies.one_shot.one_shot_policy import Noise, OneShotPolicy, Sample
from placeto.policies.one_shot.sequence import Elements, SequencePlacer
from placeto.policies.one_shot.unit_layers import UnitEncoder


@dataclass(frozen=True)
class Seq2SeqConfig:
    """What the sequence-to-sequence policy is made of."""

    units: UnitKind = "few"
    """What gets a device. few: groups of ops, or stretches of the topological order in graphs of many ops, which are
    decoded faster. groups: always groups. paper: the co-located ops of the paper. ops: single ops, as far as they are
    free."""
    hidden: Width = 64
    """Width of embeddings and of the LSTMs."""
    feedback: bool = True
    """Whether the decoder sees where a unit's inputs come from and each device's work so far, or, as in the paper, only
    the device of the last unit."""
    normalised: bool = True
    """Whether logits are computed from the normalised output of the decoder, or from its hyperbolic tangent."""
    max_devices: Width = 8
    """The most devices that a cluster of the training may have.
    The policy then places on as many devices as the largest cluster of its training has, or fewer."""


class Seq2SeqPolicy(OneShotPolicy):
    """The network of the sequence-to-sequence placer: encoder and decoder over all units of a graph."""

    def __init__(self, config: Seq2SeqConfig) -> None:
        super().__init__(config.units, config.max_devices)
        self.encoder = UnitEncoder(config.hidden)
        self.placer = SequencePlacer(config.hidden, config.max_devices, config.feedback, normalised=config.normalised)

    def side_by_side(self, graphs: Sequence[OneShotInput], noise: Sequence[Noise]) -> list[Sample]:
        """Choose devices unit by unit, for all samples of all graphs; see `OneShotPolicy.decide`."""
        drawn = self.placer.sample([self._elements(graph) for graph in graphs], [each for (each,) in noise])
        return [Sample(action, log_prob, action) for action, log_prob in drawn]

    def score(self, graph: OneShotInput, action: Tensor) -> tuple[Tensor, Tensor]:
        """Return log-probabilities (K, U) and mean entropies (K,) in nats, without a loop over units."""
        log_prob, entropy = self.placer.score(self._elements(graph), action)
        return log_prob, entropy.mean(-1)

    def _elements(self, graph: OneShotInput) -> Elements:
        """Return the graph's units as one sequence, B = 1."""
        return Elements(
            x=self.encoder(graph)[None],
            devices=self.placer.head.embeddings(graph),
            time=graph.pair[None],
            work=graph.work[None] * graph.num_devices,
            producers=graph.producers[None],
            shares=graph.shares[None],
        )
