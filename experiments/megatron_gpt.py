"""GPT as Megatron-LM computes it in 16 bits, in its layout and with as many kernels as its fused ones have.

Shoeybi et al., 2019, arXiv 1909.08053, and Korthikanti et al., 2022, arXiv 2205.05198. The batch is the second
dimension, so that the heads of attention are views and no tensor is copied. Its fused kernels are written as one op
each: the softmax that scales and masks is a softmax, a bias with GELU is a GELU, since a product adds its bias. Dropout
and the sum behind it are two ops here.

Legend: B batch, T words, H units, A heads.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

SHARDED = {
    "word": RowwiseParallel(input_layouts=Replicate()),
    "layers.*.attention.qkv": ColwiseParallel(),
    "layers.*.attention.output": RowwiseParallel(),
    "layers.*.up": ColwiseParallel(),
    "layers.*.down": RowwiseParallel(),
    "head": ColwiseParallel(use_local_output=False),
}
"""Tensor parallelism: each rank has some of the heads, and of the words. The loss is one in torch's `loss_parallel`."""


class Attention(nn.Module):
    """Attention of a layer; `qkv` has its rows by heads, so that it can be divided by them."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.size = width // heads
        self.qkv, self.output, self.dropout = nn.Linear(width, 3 * width), nn.Linear(width, width), nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        """(T, B, H) -> (T, B, H)."""
        length, batch, _ = x.shape
        rows = self.qkv(x).view(length, -1, 3 * self.size)  # (T, B A, 3 H / A)
        query, key, value = (part.transpose(0, 1) for part in rows.split(self.size, -1))
        scores = torch.baddbmm(
            query.new_zeros(()), query, key.transpose(1, 2), beta=0.0, alpha=1.0 / math.sqrt(self.size)
        )
        attended = torch.bmm(self.dropout(scores.softmax(-1)), value)  # (B A, T, H / A)
        return self.output(attended.transpose(0, 1).reshape(length, batch, -1))


class Layer(nn.Module):
    """Attention and two products, norms before them."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norms, self.attention = nn.ModuleList([nn.LayerNorm(width) for _ in range(2)]), Attention(width, heads)
        self.up, self.down, self.dropout = nn.Linear(width, 4 * width), nn.Linear(4 * width, width), nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        """(T, B, H) -> (T, B, H)."""
        x = x + self.dropout(self.attention(self.norms[0](x)))
        return x + self.dropout(self.down(F.gelu(self.up(self.norms[1](x)), approximate="tanh")))


class Gpt(nn.Module):
    """Embeddings, layers, and the logits of all words."""

    def __init__(self, layers: int, width: int, heads: int, words: int, length: int) -> None:
        super().__init__()
        self.word, self.position = nn.Embedding(words, width), nn.Embedding(length, width)
        self.layers = nn.ModuleList([Layer(width, heads) for _ in range(layers)])
        self.dropout, self.norm, self.head = nn.Dropout(0.1), nn.LayerNorm(width), nn.Linear(width, words, bias=False)

    def forward(self, words: Tensor) -> Tensor:
        """(B, T) -> logits (T B, words)."""
        x = self.word(words) + self.position(torch.arange(words.shape[1], device=words.device))
        x = self.dropout(x.transpose(0, 1).contiguous())
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x)).flatten(0, 1)
