"""moe: a transformer language model with mixtures of experts, in the manner of GShard (Lepikhin et al., ICLR 2021).

In every other layer the feed-forward network is a mixture (arXiv 2006.16668, section 2): a gate sends each word to its
best two experts, or its best one as in Switch (Fedus et al., JMLR 2022, arXiv 2101.03961). An expert takes as many
words as its capacity, so that all shapes are known beforehand; words beyond it skip the expert. Experts are separate
networks, which may run in parallel. Layers, width, experts and batch vary. Dropout and the balancing loss are left out.

Legend: B sequences, T words, H units, N = B T, E experts, C words of an expert at most.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from graphs.models import ModelFamily, deal
from graphs.training_step import TrainingStep

WORDS = 32_000
CAPACITY = 1.25  # capacity of all experts together / number of words that are sent to them


@dataclass(frozen=True)
class Network:
    """The sizes that differ between the networks of this family."""

    layers: int  # every other one has experts
    width: int  # H; 64 of each head
    experts: int  # E
    chosen: int  # of them by each word
    length: int  # T
    batch: int  # sequences


class Mixture(nn.Module):
    """Experts, and the gate that sends them words."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        width, self.chosen = network.width, network.chosen
        self.gate = nn.Linear(width, network.experts, bias=False)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
            for _ in range(network.experts)
        )

    def forward(self, x: Tensor) -> Tensor:
        """(N, H) -> (N, H)."""
        weight, expert = self.gate(x).softmax(-1).topk(self.chosen)  # (N, chosen) each
        capacity = int(CAPACITY * expert.numel() / len(self.experts))  # of the words here: a part of a batch has less
        wanted = F.one_hot(expert.T.flatten(), len(self.experts))  # (chosen N, E), first choices first
        place = (wanted.cumsum(0) * wanted).sum(-1) - 1  # (chosen N,) place at its expert
        taken = place < capacity
        at = expert.T.flatten() * capacity + place.clamp(max=capacity - 1)
        rows = x.repeat(self.chosen, 1) * taken[:, None]
        there = torch.zeros(len(self.experts) * capacity, x.shape[1]).to(x).index_add(0, at, rows)
        parts = there.split(capacity)
        back = torch.cat([network(part) for network, part in zip(self.experts, parts, strict=True)])
        share = weight.T.flatten() * taken
        return (back.index_select(0, at) * share[:, None]).unflatten(0, (self.chosen, -1)).sum(0)


class Layer(nn.Module):
    """Attention and a feed-forward network or mixture, each behind a norm and with a residual connection."""

    def __init__(self, network: Network, mixture: bool) -> None:
        super().__init__()
        width = network.width
        self.heads = width // 64
        self.query_key_value, self.output = nn.Linear(width, 3 * width), nn.Linear(width, width)
        dense = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.feed_forward: nn.Module = Mixture(network) if mixture else dense
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, H) -> (B, T, H)."""
        parts = self.query_key_value(self.norms[0](x)).chunk(3, -1)
        query, key, value = (part.unflatten(2, (self.heads, 64)).transpose(1, 2) for part in parts)
        attended = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.output(attended.transpose(1, 2).flatten(2))
        return x + self.feed_forward(self.norms[1](x).flatten(0, 1)).view_as(x)


class Moe(nn.Module):
    """Embeddings, layers and a softmax over the words."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, network.width)
        self.positions = nn.Parameter(torch.empty(network.length, network.width))
        self.layers = nn.Sequential(*[Layer(network, number % 2 == 1) for number in range(network.layers)])
        self.norm, self.output = nn.LayerNorm(network.width), nn.Linear(network.width, WORDS, bias=False)

    def forward(self, words: Tensor) -> Tensor:
        """(B, T) -> logits (B T, words)."""
        return self.output(self.norm(self.layers(self.words(words) + self.positions))).flatten(0, 1)


def loss(logits: Tensor, words: Tensor) -> Tensor:
    """Cross-entropy of the next words (B, T)."""
    return F.cross_entropy(logits, words.flatten())


def training_step(network: Network) -> TrainingStep:
    """Return a training step of a network, on the default device; the values of its inputs are arbitrary."""
    words = torch.zeros(network.batch, network.length, dtype=torch.long)
    return TrainingStep(Moe(network), (words,), (words,), loss)


GRID = [
    Network(layers, width, experts, chosen, *shape)
    for layers, width, experts, chosen, shape in product(
        (4, 8, 12), (512, 1024), (4, 8, 16), (1, 2), ((256, 16), (512, 8))
    )
]

FAMILIES = (
    ModelFamily(
        "moe",
        "transformer with mixtures of experts; layers, width, experts, choices and batch vary",
        training_step,
        deal((), GRID),
    ),
)
