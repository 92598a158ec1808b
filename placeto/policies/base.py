"""What the learned placers share: a distribution over (node, device) pairs.

Legend: V nodes of all graphs of a batch together, B graphs, G nodes of the largest graph, D devices.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from torch_geometric.data import Data


class PolicyError(ValueError):
    """A problem that the policy was not made for."""


def answers(policy: nn.Module, data: Data) -> tuple[Tensor, Tensor]:
    """Logits (V, D) of all moves of an observation, and the changes (V, D) that the policy predicts for them.

    Raises:
        PolicyError: the policy, which may be of another package, returns anything else.
    """
    found, shape = policy(data), tuple(data.legal.shape)
    parts = found if isinstance(found, tuple) else (found,)
    if len(parts) != 2 or not all(isinstance(p, Tensor) and p.is_floating_point() and p.shape == shape for p in parts):
        raise PolicyError(
            f"{type(policy).__name__} returns {' and '.join(map(_described, parts)) or 'nothing'}; it must return the "
            f"logits and the predicted changes of all moves, two tensors of floats {shape}"
        )
    if torch.is_grad_enabled() and not parts[0].requires_grad:
        raise PolicyError(f"{type(policy).__name__} returns logits that don't depend on its parameters")
    return parts[0], parts[1]


def _described(part: Any) -> str:
    return f"{part.dtype} {tuple(part.shape)}" if isinstance(part, Tensor) else type(part).__name__


@dataclass(frozen=True)
class PairDistribution:
    """For each graph of a batch a categorical distribution over the legal (node, device) pairs."""

    log_probs: Tensor  # (B, G * D) float, -inf where not legal
    devices: int  # D

    @classmethod
    def from_logits(cls, logits: Tensor, data: Data, temperature: float = 1.0) -> PairDistribution:
        """Normalise pair logits (V, D) within each graph of the batch, illegal pairs left out."""
        devices = logits.shape[1]
        dense = logits.new_full((data.num_graphs * data.max_nodes, devices), -torch.inf)
        slot = data.batch * data.max_nodes + data.local
        dense = dense.index_copy(0, slot, (logits / temperature).masked_fill(~data.legal, -torch.inf))
        return cls(torch.log_softmax(dense.view(data.num_graphs, -1), -1), devices)

    def sample(self, noise: Tensor) -> Tensor:
        """(B,) int64 action numbers, node * D + device, drawn at random by noise (B, G * D) of the exponential law.

        The first of independent exponential clocks with these rates to ring: what `torch.multinomial` does.
        """
        return (self.log_probs.exp() / noise).argmax(-1)

    def mode(self) -> Tensor:
        """(B,) int64 most likely action numbers."""
        return self.log_probs.argmax(-1)

    def log_prob(self, action: Tensor) -> Tensor:
        """(B,) log-probabilities of action numbers."""
        return self.log_probs.gather(1, action[:, None])[:, 0]

    def entropy(self) -> Tensor:
        """(B,) entropies, in nats."""
        finite = self.log_probs.clamp(min=-1e9)
        return -(finite.exp() * finite).sum(-1)
