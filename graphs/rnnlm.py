"""rnnlm: LSTM language models of 2, 4 and 8 layers, unrolled (Zaremba et al., 2014; Jozefowicz et al., 2016).

A benchmark of Mirhoseini et al. (2017) and, with 2, 4 and 8 layers, of GDP (2019). Hidden size, steps and batch vary,
in ranges of ours; the softmax is over the 10,000 words of the Penn Treebank, in blocks of ten steps. Layers overlap
like a wavefront over the steps. Dropout is left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor, nn

from graphs.models import ModelFamily, by_turns, deal
from graphs.recurrent import LSTMCell, loss, softmax_blocks
from graphs.training_step import TrainingStep


@dataclass(frozen=True)
class Network:
    """The sizes that differ between the networks of this family."""

    layers: int
    hidden: int = 2048
    steps: int = 40
    batch: int = 64  # sequences
    words: int = 10_000


class LanguageModel(nn.Module):
    """Embedding, layers of LSTM cells, softmax over the words."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.embedding = nn.Embedding(network.words, network.hidden)
        self.layers = nn.ModuleList([LSTMCell(network.hidden, network.hidden) for _ in range(network.layers)])
        self.output = nn.Linear(network.hidden, network.words)

    def forward(self, words: Tensor) -> list[Tensor]:
        """Words (T, B) -> logits of each block of steps, (block * B, words)."""
        embedded = self.embedding(words).unbind(0)
        zero = torch.zeros_like(embedded[0])
        states = [(zero, zero) for _ in self.layers]
        tops = []
        for x in embedded:
            for layer, cell in enumerate(self.layers):
                states[layer] = cell(x, states[layer])
                x = states[layer][0]
            tops.append(x)
        return softmax_blocks(self.output, tops)


def training_step(network: Network) -> TrainingStep:
    """Return a training step of a network, on the default device; the values of its inputs are arbitrary."""
    words = torch.zeros(network.steps, network.batch, dtype=torch.long)
    return TrainingStep(LanguageModel(network), (words,), (words.flatten(),), loss)


def _family(layers: int) -> ModelFamily:
    grid = [Network(layers, *sizes) for sizes in product((1024, 1536, 2048), (20, 30, 40), (64, 128, 256))]
    about = f"LSTM language models of {layers} layers, unrolled; hidden size, steps and batch vary"
    sizes = "test:0 is 2048 x 40 steps at batch 64"
    return ModelFamily(f"rnnlm-{layers}", f"{about} ({sizes})", training_step, deal((Network(layers),), grid))


_DEPTHS = tuple(_family(layers) for layers in (2, 4, 8))
FAMILIES = (
    by_turns("rnnlm", "LSTM language models of 2, 4 and 8 layers by turns: the members of rnnlm-2, -4 and -8", _DEPTHS),
    *_DEPTHS,
)
