"""ptb: language models of recurrent cells drawn from the ENAS space (Pham et al., 2018, section 2.1), unrolled.

A cell is a tree of nodes. The root mixes the input with the previous state; every other node takes an earlier
node's state h to ``c * f(h W) + (1 - c) * h`` with a gate c and a drawn activation f; the mean of the leaves is the
new state. Layers of such cells are unrolled over the steps of a sentence, between an embedding and a softmax over
10,000 words (Penn Treebank), which is applied to blocks of steps, each with a loss of its own.

What decides whether placement matters, on four V100 with NVLink:

- the ratio of work to traffic, which grows with hidden size and batch: at hidden size 1024 and batch 128 a node's
  product takes 56 us by the default cost model, and its output 11 to 22 us to send after a latency of 10 us. Hidden
  sizes are 512 to 2048 and batches 128 to 256: below, the overhead of launching kernels is most of the time, and
  weights travel for longer than they are used;
- parallelism: the tree of nodes (each reads the previous one with a probability of 0, 0.5 or, a chain, 0.95), one to
  three layers, which overlap like a wavefront over 6 to 24 steps, and the gradients of the weights, a third of all
  work, which nothing waits for;
- the softmax: after every step or two, after half of the sentence, or once, which leaves little to overlap with.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from graphs.family import choice
from graphs.ops import ACTIVATIONS, highway
from graphs.recurrent import loss
from graphs.training_step import TrainingStep

WORDS = 10_000
SHAPES = (  # nodes of a cell, layers, steps
    (4, 2, 10),
    (6, 2, 8),
    (8, 2, 6),
    (8, 2, 10),
    (4, 3, 8),
    (6, 3, 8),
    (3, 1, 24),
    (4, 1, 20),
    (6, 1, 16),
    (8, 1, 12),
    (10, 1, 8),
    (12, 1, 10),
)


@dataclass(frozen=True)
class Network:
    """The properties of a network, all of which are drawn."""

    cells: tuple[tuple[tuple[int, str], ...], ...]  # per layer, per node: (earlier node, activation); the root's first
    hidden: int
    steps: int
    block: int  # steps of one softmax
    batch: int  # sentences


def draw(rng: np.random.Generator) -> Network:
    """Draw a network."""
    nodes, layers, steps = choice(rng, SHAPES)
    chain = choice(rng, (0.0, 0.5, 0.95))

    def source(node: int) -> int:
        return max(node - 1, 0) if rng.random() < chain else int(rng.integers(max(node, 1)))

    return Network(
        cells=tuple(tuple((source(node), choice(rng, ACTIVATIONS)) for node in range(nodes)) for _ in range(layers)),
        hidden=choice(rng, (512, 768, 1024, 1536, 2048)),
        steps=steps,
        block=choice(rng, (1, 2, steps // 2, steps), (3, 3, 2, 4)),
        batch=choice(rng, (128, 160, 192, 256)),
    )


class Node(nn.Module):
    """One node of a cell: a matrix product, then one fused op."""

    def __init__(self, inputs: int, hidden: int, activation: str) -> None:
        super().__init__()
        self.activation = activation
        self.weight = nn.Parameter(torch.empty(inputs, 2 * hidden))

    def forward(self, x: Tensor, state: Tensor) -> Tensor:
        """What is multiplied (B, inputs), what is carried along (B, H) -> (B, H)."""
        return highway(x @ self.weight, state, self.activation)[0]


class RecurrentCell(nn.Module):
    """One recurrent cell: a tree of nodes, of which the mean of the leaves is the new state."""

    def __init__(self, nodes: tuple[tuple[int, str], ...], hidden: int) -> None:
        super().__init__()
        self.sources = [source for source, _ in nodes[1:]]
        self.root = Node(2 * hidden, hidden, nodes[0][1])
        self.nodes = nn.ModuleList([Node(hidden, hidden, activation) for _, activation in nodes[1:]])
        self.leaves = sorted(set(range(len(nodes))) - set(self.sources))

    def forward(self, x: Tensor, state: Tensor) -> Tensor:
        """Input (B, H), state (B, H) -> state (B, H)."""
        states = [self.root(torch.cat([x, state], dim=1), state)]
        for source, node in zip(self.sources, self.nodes, strict=True):
            states.append(node(states[source], states[source]))
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


def training_step(network: Network) -> TrainingStep:
    """Return a training step of a network, on the default device; the values of its inputs are arbitrary."""
    words = torch.zeros(network.steps, network.batch, dtype=torch.long)
    return TrainingStep(LanguageModel(network), (words,), (words.flatten(),), loss)


def sample(rng: np.random.Generator) -> TrainingStep:
    """Draw a network, and return its training step."""
    return training_step(draw(rng))
