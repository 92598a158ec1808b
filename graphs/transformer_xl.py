"""transformer_xl: Transformer-XL language models of 2, 4 and 8 layers (Dai et al., ACL 2019).

A benchmark of GDP (2019). Every layer attends to its segment and to what the layer below made of the segment before,
through which no gradient flows, with relative positions. The authors' network for enwik8 has 12 such layers: 512 units,
8 heads, inner size 2048, segments and memory of 512 characters, batch 22 (``run_enwik8_base.sh`` of their code; 41
million parameters). The first test graphs have its sizes, but GDP's 2, 4 and 8 layers. Width, length, batch and the
segments of a training step vary: those of one step overlap like a wavefront over the layers, and their gradients add
up. Dropout is left out.

Legend: B sequences, T characters of a segment, M of the memory, K = M + T, H units, A heads.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from graphs.models import ModelFamily, by_turns, deal
from graphs.training_step import TrainingStep

WORDS = 204  # characters of enwik8


@dataclass(frozen=True)
class Network:
    """The sizes that differ between the networks of this family."""

    layers: int
    width: int = 512
    length: int = 512  # of a segment, and of the memory
    batch: int = 22  # sequences
    segments: int = 1  # of a training step

    @property
    def heads(self) -> int:
        """A, the number of heads, each of which is 64 wide."""
        return self.width // 64


class RelativeAttention(nn.Module):
    """Attention over memory and segment by content and distance (section 3.3 of the paper)."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(width, width, bias=False)
        self.key_value = nn.Linear(width, 2 * width, bias=False)
        self.position = nn.Linear(width, width, bias=False)
        self.output = nn.Linear(width, width, bias=False)
        self.content_bias = nn.Parameter(torch.empty(heads, 1, width // heads))
        self.position_bias = nn.Parameter(torch.empty(heads, 1, width // heads))

    def forward(self, x: Tensor, memory: Tensor, distances: Tensor, mask: Tensor) -> Tensor:
        """Segment (B, T, H), memory (B, M, H), encoded distances (K, H), mask (T, K) -> (B, T, H)."""
        query = self._split(self.query(x))
        key, value = (self._split(y) for y in self.key_value(torch.cat([memory, x], dim=1)).chunk(2, dim=2))
        distance = self._split(self.position(distances).unsqueeze(0))
        content = torch.matmul(query + self.content_bias, key.transpose(2, 3))
        position = _shift(torch.matmul(query + self.position_bias, distance.transpose(2, 3)))
        scores = (content + position) * query.shape[-1] ** -0.5
        attended = torch.matmul(scores.masked_fill(mask, float("-inf")).softmax(3), value)
        return self.output(attended.transpose(1, 2).flatten(2))

    def _split(self, x: Tensor) -> Tensor:
        """(B, T, H) -> (B, A, T, H / A)."""
        return x.unflatten(2, (self.heads, -1)).transpose(1, 2)


def _shift(scores: Tensor) -> Tensor:
    """Scores (B, A, T, K) by distance, farthest first -> by position (appendix B of the paper)."""
    batch, heads, length, keys = scores.shape
    padded = F.pad(scores, (1, 0)).view(batch, heads, keys + 1, length)
    return padded[:, :, 1:].view(batch, heads, length, keys)


class Layer(nn.Module):
    """Attention and feed-forward network, each with a residual connection and a norm behind it."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        width = network.width
        self.attention = RelativeAttention(width, network.heads)
        self.feed_forward = nn.Sequential(nn.Linear(width, 4 * width), nn.ReLU(), nn.Linear(4 * width, width))
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])

    def forward(self, x: Tensor, memory: Tensor, distances: Tensor, mask: Tensor) -> Tensor:
        """Segment (B, T, H), memory (B, M, H), encoded distances (K, H), mask (T, K) -> (B, T, H)."""
        x = self.norms[0](x + self.attention(x, memory, distances, mask))
        return self.norms[1](x + self.feed_forward(x))


class TransformerXL(nn.Module):
    """Embedding, layers, softmax, for one segment after the other; the output has the weights of the embedding."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, network.width)
        self.layers = nn.ModuleList([Layer(network) for _ in range(network.layers)])
        self.bias = nn.Parameter(torch.empty(WORDS))
        length = network.length
        self.register_buffer("distances", torch.empty(2 * length, network.width))
        self.register_buffer("mask", torch.empty(length, 2 * length, dtype=torch.bool))

    def forward(self, words: Tensor, memory: Tensor) -> list[Tensor]:
        """Words (segments, B, T), memory (layers, B, M, H) -> logits (B * T, words) of each segment."""
        memories, logits = list(memory.unbind(0)), []
        for segment in words.unbind(0):
            x = self.embedding(segment)
            for number, layer in enumerate(self.layers):
                before, memories[number] = memories[number], x.detach()
                x = layer(x, before, self.distances, self.mask)
            logits.append(F.linear(x, self.embedding.weight, self.bias).flatten(0, 1))
        return logits


def loss(logits: list[Tensor], following: Tensor) -> Tensor:
    """Cross-entropy of the following characters (segments, B, T), summed over the segments."""
    parts = zip(logits, following.unbind(0), strict=True)
    return torch.stack([F.cross_entropy(x, y.flatten()) for x, y in parts]).sum()


def training_step(network: Network) -> TrainingStep:
    """Return a training step of a network, on the default device; the values of its inputs are arbitrary."""
    words = torch.zeros(network.segments, network.batch, network.length, dtype=torch.long)
    memory = torch.empty(network.layers, network.batch, network.length, network.width)
    return TrainingStep(TransformerXL(network), (words, memory), (words,), loss)


SHAPES = (  # length, batch, segments
    *((512, batch, segments) for batch, segments in ((8, 1), (16, 1), (8, 2), (16, 2), (4, 4), (8, 4))),
    *((256, batch, segments) for batch, segments in ((16, 1), (32, 1), (16, 2), (32, 2), (8, 4), (16, 4))),
)


def _family(layers: int) -> ModelFamily:
    grid = [Network(layers, width, *shape) for width, shape in product((512, 768, 1024), SHAPES)]
    about = f"Transformer-XL of {layers} layers; width, length, batch and segments of a step vary"
    sizes = "test:0 is 512 wide with one segment of 512 at batch 22"
    return ModelFamily(f"transformer_xl-{layers}", f"{about} ({sizes})", training_step, deal((Network(layers),), grid))


_DEPTHS = tuple(_family(layers) for layers in (2, 4, 8))
FAMILIES = (
    by_turns(
        "transformer_xl",
        "Transformer-XL of 2, 4 and 8 layers by turns: the members of transformer_xl-2, -4 and -8",
        _DEPTHS,
    ),
    *_DEPTHS,
)
