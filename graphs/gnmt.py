"""gnmt: Google's neural machine translation (Wu et al., 2016) with 2, 4 and 8 layers, unrolled.

A benchmark of GDP (2019: 2, 4 and 8 layers; over 50,000 ops with 8) and, as smaller translation models, of Mirhoseini
et al. (2017) and Placeto (2019). The encoder's first layer is bidirectional; both stacks have residual connections from
their third layer on. The decoder's bottom layer queries an additive attention over the encoder's outputs, whose context
goes to all layers of the decoder, and to the bottom layer of the next step. Hidden size, steps and batch vary; 1024
units and 32,000 word pieces are the paper's (with 8 layers 281 million parameters for its 278 million), steps and
batches are ours. The softmax is applied to blocks of ten steps. Dropout is left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor, nn

from graphs.models import ModelFamily, by_turns, deal
from graphs.recurrent import LSTMCell, State, loss, softmax_blocks
from graphs.training_step import TrainingStep

LONGEST = {2: 50, 4: 50, 8: 80}  # steps of the first test graph; with 8 layers and 80 steps it has over 50,000 ops


@dataclass(frozen=True)
class Network:
    """The sizes that differ between the networks of this family."""

    layers: int  # of the encoder, and as many of the decoder
    hidden: int = 1024
    steps: int = 50  # of the source sentence, and as many of the target
    batch: int = 128  # sentence pairs
    words: int = 32_000  # of either language


class Encoder(nn.Module):
    """A bidirectional layer, then layers that read forward."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        hidden = network.hidden
        self.embedding = nn.Embedding(network.words, hidden)
        self.forwards, self.backwards = LSTMCell(hidden, hidden), LSTMCell(hidden, hidden)
        widths = [2 * hidden, *[hidden] * (network.layers - 2)][: network.layers - 1]
        self.layers = nn.ModuleList([LSTMCell(width, hidden) for width in widths])

    def forward(self, source: Tensor) -> list[Tensor]:
        """Words (S, B) -> S outputs (B, H), or (B, 2H) of a single layer."""
        embedded = self.embedding(source).unbind(0)
        zero = torch.zeros_like(embedded[0])
        right = _run(self.forwards, embedded, (zero, zero))
        left = _run(self.backwards, embedded[::-1], (zero, zero))[::-1]
        values = [torch.cat(pair, dim=1) for pair in zip(right, left, strict=True)]
        for number, layer in enumerate(self.layers):
            outputs = _run(layer, values, (zero, zero))
            values = [x + y for x, y in zip(outputs, values, strict=True)] if number else outputs
        return values


def _run(cell: nn.Module, values: tuple[Tensor, ...] | list[Tensor], state: State) -> list[Tensor]:
    """Run a cell over all steps, and return the hidden state of each."""
    outputs = []
    for x in values:
        state = cell(x, state)
        outputs.append(state[0])
    return outputs


class Attention(nn.Module):
    """Additive attention (Bahdanau et al., 2015)."""

    def __init__(self, memory: int, hidden: int) -> None:
        super().__init__()
        self.keys = nn.Linear(memory, hidden, bias=False)
        self.query = nn.Linear(hidden, hidden, bias=False)
        self.energy = nn.Linear(hidden, 1, bias=False)

    def forward(self, query: Tensor, keys: Tensor, memory: Tensor) -> Tensor:
        """Query (B, H), keys (B, S, H), memory (B, S, M) -> context (B, M)."""
        scores = self.energy(torch.tanh(keys + self.query(query).unsqueeze(1)))
        return torch.bmm(scores.softmax(1).transpose(1, 2), memory).squeeze(1)


class Translator(nn.Module):
    """Encoder, attention, decoder, softmax over the words."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        hidden = network.hidden
        self.encoder = Encoder(network)
        memory = hidden if network.layers > 1 else 2 * hidden
        self.attention = Attention(memory, hidden)
        self.embedding = nn.Embedding(network.words, hidden)
        self.decoder = nn.ModuleList([LSTMCell(hidden + memory, hidden) for _ in range(network.layers)])
        self.output = nn.Linear(hidden, network.words)

    def forward(self, source: Tensor, target: Tensor) -> list[Tensor]:
        """Words (S, B) and (T, B) -> logits of each block of target steps, (block * B, words)."""
        memory = torch.stack(self.encoder(source), dim=1)
        keys = self.attention.keys(memory)
        embedded = self.embedding(target).unbind(0)
        zero = torch.zeros_like(embedded[0])
        context = torch.zeros_like(memory[:, 0])
        states = [(zero, zero) for _ in self.decoder]
        tops = []
        for x in embedded:
            states[0] = self.decoder[0](torch.cat([x, context], dim=1), states[0])
            x = states[0][0]
            context = self.attention(x, keys, memory)
            for layer, cell in enumerate(self.decoder[1:], 1):
                states[layer] = cell(torch.cat([x, context], dim=1), states[layer])
                x = states[layer][0] + x if layer > 1 else states[layer][0]
            tops.append(x)
        return softmax_blocks(self.output, tops)


def training_step(network: Network) -> TrainingStep:
    """Return a training step of a network, on the default device; the values of its inputs are arbitrary."""
    words = torch.zeros(network.steps, network.batch, dtype=torch.long)
    return TrainingStep(Translator(network), (words, words), (words.flatten(),), loss)


def _family(layers: int) -> ModelFamily:
    first = Network(layers, steps=LONGEST[layers])
    grid = [Network(layers, *sizes) for sizes in product((512, 1024), (20, 30, 40, 50), (64, 128, 256))]
    about = f"GNMT of {layers} + {layers} layers with attention, unrolled; hidden size, steps and batch vary"
    sizes = f"test:0 is 1024 x {first.steps} steps at batch 128{', over 50,000 ops' if layers == 8 else ''}"
    return ModelFamily(f"gnmt-{layers}", f"{about} ({sizes})", training_step, deal((first,), grid))


_DEPTHS = tuple(_family(layers) for layers in (2, 4, 8))
FAMILIES = (
    by_turns("gnmt", "GNMT of 2, 4 and 8 layers by turns: the members of gnmt-2, -4 and -8", _DEPTHS),
    *_DEPTHS,
)
