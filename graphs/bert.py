"""bert: BERT, pre-training (Devlin et al., NAACL 2019): masked words and next sentence.

Size, length, batch and micro-batches vary. The paper's networks are base (12 layers of 768, 110 million parameters) and
large (24 of 1024, 340 million), the first test graphs, at batches of ours. A transformer is a chain: what runs in
parallel are the gradients of weights and of activations, the three projections, and micro-batches. Dropout is left out.

Legend: B sequences, T words, H units, P masked words of a sequence.
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

WORDS = 30_522
POSITIONS = 512


@dataclass(frozen=True)
class Network:
    """The sizes that differ between the networks of this family."""

    layers: int
    width: int  # H; 64 of each head
    length: int  # T
    batch: int  # sequences, of all micro-batches together
    micro_batches: int = 1


class Embeddings(nn.Module):
    """The normalised sum of the embeddings of word, position and segment."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.word, self.position = nn.Embedding(WORDS, width), nn.Parameter(torch.empty(POSITIONS, width))
        self.segment = nn.Embedding(2, width)
        self.norm = nn.LayerNorm(width)

    def forward(self, words: Tensor, segments: Tensor) -> Tensor:
        """Words and segments (B, T) -> (B, T, H)."""
        return self.norm(self.word(words) + self.segment(segments) + self.position[: words.shape[1]])


class Layer(nn.Module):
    """Attention and feed-forward network, each with a residual connection and a norm behind it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads = width // 64
        self.query, self.key, self.value, self.output = (nn.Linear(width, width) for _ in range(4))
        self.feed_forward = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, H) -> (B, T, H)."""
        parts = (y.unflatten(2, (self.heads, 64)).transpose(1, 2) for y in (self.query(x), self.key(x), self.value(x)))
        attended = F.scaled_dot_product_attention(*parts).transpose(1, 2).flatten(2)
        x = self.norms[0](x + self.output(attended))
        return self.norms[1](x + self.feed_forward(x))


class Bert(nn.Module):
    """Embeddings, layers, and the two heads of pre-training."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        width = network.width
        self.embeddings = Embeddings(width)
        self.layers = nn.Sequential(*[Layer(width) for _ in range(network.layers)])
        self.transform = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width))
        self.bias = nn.Parameter(torch.empty(WORDS))
        self.pooler = nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 2))

    def forward(self, words: Tensor, segments: Tensor, masked: Tensor) -> tuple[Tensor, Tensor]:
        """Words and segments (B, T), masked positions (B, P) -> logits (B, P, words) and (B, 2)."""
        x = self.layers(self.embeddings(words, segments))
        chosen = x.gather(1, masked.unsqueeze(2).expand(-1, -1, x.shape[2]))
        return F.linear(self.transform(chosen), self.embeddings.word.weight, self.bias), self.pooler(x[:, 0])


def loss(logits: tuple[Tensor, Tensor], words: Tensor, follows: Tensor) -> Tensor:
    """Cross-entropy of the masked words (B, P), and of whether the second sentence follows the first (B,)."""
    return F.cross_entropy(logits[0].flatten(0, 1), words.flatten()) + F.cross_entropy(logits[1], follows)


def training_step(network: Network) -> TrainingStep:
    """Return a training step of a network, on the default device; the values of its inputs are arbitrary."""
    words = torch.zeros(network.batch, network.length, dtype=torch.long)
    masked = torch.zeros(network.batch, round(0.15 * network.length), dtype=torch.long)
    follows = torch.zeros(network.batch, dtype=torch.long)
    step = TrainingStep(Bert(network), (words, words, masked), (masked, follows), loss)
    return in_micro_batches(step, network.micro_batches)


BASE, LARGE = Network(12, 768, 128, 32), Network(24, 1024, 128, 16)
GRID = [
    Network(*size, *shape, micro_batches)
    for size, shape, micro_batches in product(
        ((8, 512), (12, 768), (16, 768), (24, 1024)), ((128, 32), (256, 16), (512, 8), (512, 16)), (1, 2, 4)
    )
]

FAMILIES = (
    ModelFamily(
        "bert",
        "BERT pre-training; layers, width, length, batch and micro-batches vary (test:0 is base, test:1 large, at 128)",
        training_step,
        deal((BASE, LARGE), GRID),
    ),
)
