"""llama: decoder-only transformers as LLaMA (Touvron et al., 2023) and its smaller kin, training.

Norms before the blocks (RMSNorm), rotary positions, gated feed-forward networks (SwiGLU), grouped-query attention where
there are fewer key heads. Size, length, batch and micro-batches vary. The first test graph is the largest, TinyLlama
(Zhang et al., 2024), which needs several 16 GB devices for its weights alone (1.1 billion parameters, 17.6 GB with
gradients and optimizer); the other sizes are ours. What runs in parallel is as in `bert`.

Legend: B sequences, T words, H units, A heads.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from graphs.microbatches import in_micro_batches
from graphs.models import ModelFamily, deal
from graphs.training_step import TrainingStep

WORDS = 32_000


@dataclass(frozen=True)
class Size:
    """The size of a model."""

    layers: int
    width: int  # H
    heads: int  # A
    key_heads: int
    inner: int  # width of the feed-forward network inside


@dataclass(frozen=True)
class Network:
    """The sizes that differ between the networks of this family."""

    size: Size
    length: int  # T
    batch: int  # sequences, of all micro-batches together
    micro_batches: int = 1


class Attention(nn.Module):
    """Causal attention with rotary positions."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.head = size.width // size.heads
        self.repeats = size.heads // size.key_heads
        keys = size.key_heads * self.head
        self.query, self.output = (nn.Linear(size.width, size.width, bias=False) for _ in range(2))
        self.key, self.value = (nn.Linear(size.width, keys, bias=False) for _ in range(2))

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """(B, T, H), angles (T, head) -> (B, T, H)."""
        q, k, v = (y.unflatten(2, (-1, self.head)).transpose(1, 2) for y in (self.query(x), self.key(x), self.value(x)))
        q, k = _rotate(q, cos, sin), _rotate(k, cos, sin)
        if self.repeats > 1:
            k, v = (y.repeat_interleave(self.repeats, dim=1) for y in (k, v))
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.output(attended.transpose(1, 2).flatten(2))


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary positions (Su et al., 2021) on (B, A, T, head)."""
    left, right = x.chunk(2, dim=3)
    return x * cos + torch.cat([-right, left], dim=3) * sin


class Layer(nn.Module):
    """Attention and feed-forward network, each with a norm before it and a residual connection around both."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.attention = Attention(size)
        self.gate, self.up = (nn.Linear(size.width, size.inner, bias=False) for _ in range(2))
        self.down = nn.Linear(size.inner, size.width, bias=False)
        self.norms = nn.ModuleList([nn.RMSNorm(size.width), nn.RMSNorm(size.width)])

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """(B, T, H), angles (T, head) -> (B, T, H)."""
        x = x + self.attention(self.norms[0](x), cos, sin)
        y = self.norms[1](x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    """Embedding, layers, norm, output."""

    def __init__(self, size: Size, length: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, size.width)
        self.layers = nn.ModuleList([Layer(size) for _ in range(size.layers)])
        self.norm = nn.RMSNorm(size.width)
        self.output = nn.Linear(size.width, WORDS, bias=False)
        for name in ("cos", "sin"):
            self.register_buffer(name, torch.empty(length, size.width // size.heads))

    def forward(self, words: Tensor) -> Tensor:
        """Words (B, T) -> logits (B, T, words)."""
        x = self.embedding(words)
        for layer in self.layers:
            x = layer(x, self.cos, self.sin)
        return self.output(self.norm(x))


def loss(logits: Tensor, following: Tensor) -> Tensor:
    """Cross-entropy of the following words (B, T)."""
    return F.cross_entropy(logits.flatten(0, 1), following.flatten())


def training_step(network: Network) -> TrainingStep:
    """Return a training step of a network, on the default device; the values of its inputs are arbitrary."""
    words = torch.zeros(network.batch, network.length, dtype=torch.long)
    step = TrainingStep(Llama(network.size, network.length), (words,), (words,), loss)
    return in_micro_batches(step, network.micro_batches)


LLAMA_7B = Size(32, 4096, 32, 32, 11008)  # in no split: its training step is for checks of the model
LLAMA_1B = Size(22, 2048, 32, 4, 5632)  # TinyLlama
SMALLER = (
    Size(8, 1024, 16, 16, 2816),
    Size(12, 1024, 16, 4, 2816),
    Size(16, 1024, 16, 16, 2816),
    Size(12, 1536, 24, 24, 4096),
    Size(16, 1536, 24, 6, 4096),
    Size(12, 2048, 32, 4, 5632),
)
GRID = [
    Network(size, *shape, micro_batches)
    for size, shape, micro_batches in product(SMALLER, ((512, 4), (512, 8), (1024, 4), (2048, 2)), (1, 2, 4))
    if shape[1] >= micro_batches
]

FAMILIES = (
    ModelFamily(
        "llama",
        "decoder-only transformers; size, length, batch and micro-batches vary (test:0 has 1.1 billion parameters)",
        training_step,
        deal((Network(LLAMA_1B, 1024, 4, 4),), GRID),
    ),
)
