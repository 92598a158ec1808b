"""ptb: language models of recurrent cells drawn from the ENAS space (Pham et al., 2018, section 2.1), unrolled.

A cell is a tree of nodes. The root mixes the input with the previous state; every other node takes an earlier
node's state h to ``c * f(h W) + (1 - c) * h`` with a gate c and a drawn activation f; the mean of the leaves is the
new state. Layers of such cells are unrolled over the steps of a sentence, between an embedding and a softmax over
10,000 words (Penn Treebank), which is applied to blocks of steps, each with a loss of its own.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from graphs.family import Family, TrainingStep, choice
from graphs.ops import ACTIVATIONS, highway

WORDS = 10_000


@dataclass(frozen=True)
class Network:
    """What is drawn."""

    cells: tuple[tuple[tuple[int, str], ...], ...]  # per layer, per node: (earlier node, activation); the root's first
    hidden: int
    steps: int
    block: int  # steps of one softmax
    batch: int  # sentences


def draw(rng: np.random.Generator) -> Network:
    """Draw a network."""
    nodes, layers, steps = choice(rng, ((4, 2, 10), (6, 2, 8), (8, 2, 6), (8, 1, 12), (12, 1, 10), (4, 3, 8), (6, 1, 16)))

    def cell() -> tuple[tuple[int, str], ...]:
        return tuple((int(rng.integers(max(node, 1))), choice(rng, ACTIVATIONS)) for node in range(nodes))

    return Network(
        cells=tuple(cell() for _ in range(layers)),
        hidden=choice(rng, (1024, 1536, 2048)),
        steps=steps,
        block=choice(rng, (1, 2, steps // 2)),
        batch=choice(rng, (64, 128, 256)),
    )


class RecurrentCell(nn.Module):
    """One cell."""

    def __init__(self, nodes: tuple[tuple[int, str], ...], hidden: int) -> None:
        super().__init__()
        self.nodes = nodes
        self.weights = nn.ParameterList(
            [nn.Parameter(torch.empty((2 if node == 0 else 1) * hidden, 2 * hidden)) for node in range(len(nodes))]
        )
        used = {source for source, _ in nodes[1:]}
        self.leaves = [node for node in range(len(nodes)) if node not in used]

    def forward(self, x: Tensor, state: Tensor) -> Tensor:
        """Input (B, H), state (B, H) -> state (B, H)."""
        states = [highway(torch.cat([x, state], dim=1) @ self.weights[0], state, self.nodes[0][1])[0]]
        for (source, activation), weight in zip(self.nodes[1:], list(self.weights)[1:], strict=True):
            states.append(highway(states[source] @ weight, states[source], activation)[0])
        leaves = [states[leaf] for leaf in self.leaves]
        return leaves[0] if len(leaves) == 1 else torch.stack(leaves).mean(0)


class LanguageModel(nn.Module):
    """Embedding, layers of cells, softmax over the words."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.network = network
        self.embedding = nn.Embedding(WORDS, network.hidden)
        self.layers = nn.ModuleList([RecurrentCell(cell, network.hidden) for cell in network.cells])
        self.output = nn.Linear(network.hidden, WORDS, bias=False)

    def forward(self, words: Tensor) -> list[Tensor]:
        """Words (T, B) -> logits of each block of steps, (block * B, words)."""
        embedded = self.embedding(words).unbind(0)
        states = [torch.zeros_like(embedded[0]) for _ in self.layers]
        tops: list[Tensor] = []
        for x in embedded:
            for layer, cell in enumerate(self.layers):
                x = states[layer] = cell(x, states[layer])
            tops.append(x)
        block = self.network.block
        return [self.output(torch.cat(tops[i : i + block])) for i in range(0, len(tops), block)]


def loss(logits: list[Tensor], following: Tensor) -> Tensor:
    """Cross-entropy of the following words (T * B,), summed over the blocks."""
    targets = following.split([len(block) for block in logits])
    return torch.stack([F.cross_entropy(x, y) for x, y in zip(logits, targets, strict=True)]).sum()


def sample(rng: np.random.Generator) -> TrainingStep:
    """A training step of a drawn network."""
    network = draw(rng)
    words = torch.zeros(network.steps, network.batch, dtype=torch.long)
    return TrainingStep(LanguageModel(network), (words,), (words.flatten(),), loss)


FAMILY = Family("ptb", "language models of ENAS recurrent cells, unrolled, with embedding and softmax", sample)
