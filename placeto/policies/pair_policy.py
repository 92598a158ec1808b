"""What the iterative policies share: a check of what they return, a distribution over moves, and their scores.

Legend: V nodes of all graphs of a batch together, B graphs, G nodes of the largest graph, D devices.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from placeto.environment.observation import Observation
from placeto.errors import PlacerError

if TYPE_CHECKING:
    from torch_geometric.data import Data


def answers(policy: nn.Module, data: Data) -> tuple[Tensor, Tensor]:
    """Return the logits (V, D) of all moves of an observation, and the changes (V, D) that the policy predicts.

    Raises:
        PlacerError: the policy, which may be of another package, returns anything else; or gradients are enabled, and
            the logits don't depend on the policy's parameters.
    """
    found, shape = policy(data), tuple(data.legal.shape)
    parts = found if isinstance(found, tuple) else (found,)
    if len(parts) != 2 or not all(isinstance(p, Tensor) and p.is_floating_point() and p.shape == shape for p in parts):
        raise PlacerError(
            f"{type(policy).__name__} returns {' and '.join(map(_described, parts)) or 'nothing'}; it must return the "
            f"logits and the predicted changes of all moves, two tensors of floats {shape}"
        )
    if torch.is_grad_enabled() and not parts[0].requires_grad:
        raise PlacerError(f"{type(policy).__name__} returns logits that don't depend on its parameters")
    return parts[0], parts[1]


@dataclass(frozen=True, eq=False)
class TorchScorer:
    """Scores moves for guided search, as `CompiledPolicy` does, with a policy of another package."""

    policy: nn.Module

    def __call__(self, seen: Observation, legal: np.ndarray) -> np.ndarray:
        """Return the logits (V, D) of all moves of an observation.

        Raises:
            PlacerError: see `answers`.
        """
        from placeto.environment.tensors import to_data  # imported here, because its module imports torch_geometric

        data = to_data(seen)
        data.legal = torch.from_numpy(legal)
        with torch.no_grad():
            logits: np.ndarray = answers(self.policy, data)[0].numpy()
        return logits


def _described(part: Any) -> str:
    return f"{part.dtype} {tuple(part.shape)}" if isinstance(part, Tensor) else type(part).__name__


@dataclass(frozen=True)
class PairDistribution:
    """A categorical distribution over the legal (node, device) pairs, for each graph of a batch."""

    log_probs: Tensor  # (B, G * D) float, -inf where not legal
    devices: int  # D

    @classmethod
    def from_logits(cls, logits: Tensor, data: Data, temperature: float = 1.0) -> PairDistribution:
        """Divide logits (V, D) of pairs by the temperature, and normalise them over the legal pairs of each graph."""
        devices = logits.shape[1]
        dense = logits.new_full((data.num_graphs * data.max_nodes, devices), -torch.inf)
        slot = data.batch * data.max_nodes + data.local
        dense = dense.index_copy(0, slot, (logits / temperature).masked_fill(~data.legal, -torch.inf))
        return cls(torch.log_softmax(dense.view(data.num_graphs, -1), -1), devices)

    def sample(self, noise: Tensor) -> Tensor:
        """Draw one action of each graph: (B,) int64 action numbers, node * D + device.

        `noise` (B, G * D) has independent draws from the exponential distribution of mean 1. The pair with the largest
        probability / noise is then a draw from the distribution; `torch.multinomial` draws in the same way.
        """
        return (self.log_probs.exp() / noise).argmax(-1)

    def mode(self) -> Tensor:
        """Return the most likely action number of each graph: (B,) int64."""
        return self.log_probs.argmax(-1)

    def log_prob(self, action: Tensor) -> Tensor:
        """Return the log-probabilities (B,) of action numbers (B,)."""
        return self.log_probs.gather(1, action[:, None])[:, 0]

    def entropy(self) -> Tensor:
        """Return the entropy of each graph's distribution: (B,), in nats."""
        finite = self.log_probs.clamp(min=-1e9)
        return -(finite.exp() * finite).sum(-1)
