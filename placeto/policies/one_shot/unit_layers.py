"""Layers of the one-shot policies: embeddings of units, logits over devices, and noise.

Legend: N ops, U units, D devices, H hidden, T buckets of op types, K samples, A decisions of a sample, W width of a
type's embedding, F features of a pair.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from placeto.policies.message_passing import mlp
from placeto.policies.one_shot.inputs import DEVICE_FEATURES, NEIGHBOURS, TYPE_BUCKETS, UNIT_FEATURES, OneShotInput

TYPE_WIDTH = 16


class UnitEncoder(nn.Module):
    """Embeds units by the types of their ops, their features and their neighbours: (U, H)."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.types = nn.Embedding(TYPE_BUCKETS, TYPE_WIDTH)
        self.mlp = mlp([TYPE_WIDTH + len(UNIT_FEATURES) + 2 * NEIGHBOURS, hidden, hidden])
        self.norm = nn.LayerNorm(hidden)

    def forward(self, graph: OneShotInput) -> Tensor:
        """Return the embeddings (U, H) of the graph's units."""
        kinds = type_mixture(self.types, graph)
        return self.norm(self.mlp(torch.cat([kinds, graph.features, graph.neighbours], -1)))


def type_mixture(types: nn.Embedding, graph: OneShotInput) -> Tensor:
    """Return (U, W) the mean embedding of the types of each unit's ops."""
    count = torch.bincount(graph.unit, minlength=graph.num_units).to(types.weight.dtype)
    total = types.weight.new_zeros(graph.num_units, types.embedding_dim)
    return total.index_add(0, graph.unit, types(graph.op_type)) / count[:, None]


class DeviceHead(nn.Module):
    """Logits over devices: the product of a query and a device's embedding, plus a weighted sum of the pair's features.

    The query and the weights are linear in x. A device's embedding is the sum of an embedding of its number, which
    tells equal devices apart, and of its features. The layers of the query and of the weights begin with small numbers,
    so that an untrained policy is nearly uniform. With a `bound`, a logit z becomes bound * tanh(z / temperature), so
    that no decision gets certain (Bello et al. 2017, arXiv 1611.09940).
    """

    def __init__(
        self, hidden: int, max_devices: int, pair_features: int = 1, bound: float = 0.0, temperature: float = 1.0
    ) -> None:
        super().__init__()
        self.bound, self.temperature = bound, temperature
        self.number = nn.Embedding(max_devices, hidden)
        self.features = nn.Linear(len(DEVICE_FEATURES), hidden, bias=False)
        self.query = nn.Linear(hidden, hidden)
        self.pair = nn.Linear(hidden, pair_features)
        for layer in (self.query, self.pair):
            nn.init.normal_(layer.weight, std=0.1 * hidden**-0.5)
            nn.init.zeros_(layer.bias)

    def embeddings(self, graph: OneShotInput) -> Tensor:
        """Return the embeddings (D, H) of the cluster's devices."""
        return self.number.weight[: graph.num_devices] + self.features(graph.device)

    @torch.no_grad()
    def soften(self, temperature: float) -> None:
        """Divide all logits, before they are bounded, by a temperature, by changing parameters."""
        for parameter in (*self.query.parameters(), *self.pair.parameters()):
            parameter.div_(temperature)

    def forward(self, x: Tensor, devices: Tensor, pair: Tensor) -> Tensor:
        """Return logits (..., D) for x (..., H), embeddings `devices` (..., D, H) and features `pair` (..., D, F)."""
        logits = self.query(x) @ devices.transpose(-1, -2) + (pair @ self.pair(x)[..., None])[..., 0]
        return self.bound * torch.tanh(logits / self.temperature) if self.bound else logits


def gumbel_noise(shape: tuple[int, ...], generator: torch.Generator | None, like: Tensor) -> Tensor:
    """Draw Gumbel noise of a shape, with which `argmax(logits + noise)` is a draw from the softmax of the logits.

    Without a generator the noise is 0. The tensor has the device and type of `like`.
    """
    if generator is None:
        return like.new_zeros(shape)
    uniform = torch.rand(shape, generator=generator, device=like.device, dtype=like.dtype)
    return -torch.log(-torch.log(uniform.clamp(1e-9, 1 - 1e-7)))


def log_prob_and_entropy(logits: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
    """Return log-probabilities (K, A) of actions (K, A) under logits (K, A, D), and entropies (K, A) in nats.

    The entropies are those of the distributions. Logits may also be (A, D), the same for all K samples.
    """
    log_probs = torch.log_softmax(logits, -1)
    entropy = -(log_probs.exp() * log_probs).sum(-1)
    shape = (*action.shape, logits.shape[-1])
    return log_probs.expand(shape).gather(-1, action[..., None])[..., 0], entropy.expand(action.shape)
