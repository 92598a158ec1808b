"""nmt: translation models, LSTM encoder and decoder with attention (Luong et al., 2015; residual layers as in GNMT).

The encoder's layers run over the source sentence. At every target step the decoder's layers run, the top one
attends to the encoder's outputs (dot product), and the attentional state is fed back as part of the next input. The
softmax is applied to blocks of steps, each with a loss of its own.

What decides whether placement matters, on four V100 with NVLink:

- the ratio of work to traffic, which grows with hidden size and batch: an LSTM step of hidden size 2048 at batch 128
  takes 0.80 ms by the default cost model, and its output 0.02 to 0.04 ms to send. Hidden sizes are 512 to 2048 and
  batches 128 to 256: below, weights travel for longer than they are used. Since weights take long to send, all steps
  of a cell belong on one device;
- parallelism: one to four layers a side, which overlap like a wavefront over 4 to 26 steps, and the gradients of the
  weights; feeding the attentional state back (two networks of three) makes the decoder's steps serial;
- the softmax, over 8,000 to 32,000 words: after every 1, 2 or 4 steps, or once, which leaves little to overlap with.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from graphs.family import choice
from graphs.ops import lstm_cell
from graphs.recurrent import loss
from graphs.training_step import TrainingStep


@dataclass(frozen=True)
class Network:
    """The properties of a network, all of which are drawn."""

    encoder_layers: int
    decoder_layers: int
    source: int  # steps
    target: int  # steps
    hidden: int
    words: int  # of either language
    block: int  # steps of one softmax
    batch: int  # sentence pairs
    feed: bool  # feed the attentional state back (serial), or not


def draw(rng: np.random.Generator) -> Network:
    """Draw a network."""
    layers = choice(rng, (1, 2, 3, 4), (4, 3, 3, 2))
    source = choice(rng, {1: (16, 20, 24), 2: (10, 14, 18), 3: (8, 12, 14), 4: (6, 8, 10)}[layers])
    target = source + choice(rng, (-2, 0, 2))
    return Network(
        encoder_layers=layers,
        decoder_layers=max(1, layers - choice(rng, (0, 0, 1))),
        source=source,
        target=target,
        hidden=choice(rng, (512, 768, 1024, 1536, 2048)),
        words=choice(rng, (8_000, 16_000, 32_000)),
        block=choice(rng, (1, 2, 4, target), (1, 1, 1, 2)),
        batch=choice(rng, (128, 160, 192, 256)),
        feed=bool(rng.random() < 2 / 3),
    )


class LSTMCell(nn.Module):
    """One LSTM step: one matrix product for all gates, then one fused op."""

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(inputs + hidden, 4 * hidden))
        self.bias = nn.Parameter(torch.empty(4 * hidden))

    def forward(self, x: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Input (B, inputs), state (hidden (B, H), cell (B, H)) -> state."""
        gates = torch.addmm(self.bias, torch.cat([x, state[0]], dim=1), self.weight)
        hidden, cell, _ = lstm_cell(gates, state[1])
        return hidden, cell


class Attention(nn.Module):
    """Dot-product attention and the attentional state (Luong et al., 2015, section 3)."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.combine = nn.Linear(2 * hidden, hidden, bias=False)

    def forward(self, query: Tensor, memory: Tensor) -> Tensor:
        """Query (B, H), memory (B, S, H) -> attentional state (B, H)."""
        scores = torch.bmm(memory, query.unsqueeze(2))
        context = torch.bmm(scores.softmax(1).transpose(1, 2), memory).squeeze(1)
        return torch.tanh(self.combine(torch.cat([context, query], dim=1)))


class Translator(nn.Module):
    """Encoder, decoder, attention, softmax over the words."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        hidden = network.hidden
        self.network = network
        self.source_embedding = nn.Embedding(network.words, hidden)
        self.target_embedding = nn.Embedding(network.words, hidden)
        self.encoder = nn.ModuleList([LSTMCell(hidden, hidden) for _ in range(network.encoder_layers)])
        widths = [(2 if network.feed else 1) * hidden] + [hidden] * (network.decoder_layers - 1)
        self.decoder = nn.ModuleList([LSTMCell(width, hidden) for width in widths])
        self.attention = Attention(hidden)
        self.output = nn.Linear(hidden, network.words, bias=False)

    def forward(self, source: Tensor, target: Tensor) -> list[Tensor]:
        """Words (S, B) and (T, B) -> logits of each block of target steps, (block * B, words)."""
        zero = self.output.weight.new_zeros(source.shape[1], self.network.hidden)
        states = [(zero, zero) for _ in self.encoder]
        memory = []
        for x in self.source_embedding(source).unbind(0):
            memory.append(_step(self.encoder, x, states))
        keys = torch.stack(memory, dim=1)
        states = [states[min(layer, len(states) - 1)] for layer in range(len(self.decoder))]
        attended, tops = zero, []
        for x in self.target_embedding(target).unbind(0):
            top = _step(self.decoder, torch.cat([x, attended], dim=1) if self.network.feed else x, states)
            attended = self.attention(top, keys)
            tops.append(attended)
        block = self.network.block
        return [self.output(torch.cat(tops[i : i + block])) for i in range(0, len(tops), block)]


def _step(cells: nn.ModuleList, x: Tensor, states: list[tuple[Tensor, Tensor]]) -> Tensor:
    """Run one step through the layers, with residual connections above the first; `states` is updated in place."""
    for layer, cell in enumerate(cells):
        states[layer] = cell(x, states[layer])
        x = states[layer][0] + x if layer else states[layer][0]
    return x


def training_step(network: Network) -> TrainingStep:
    """Return a training step of a network, on the default device; the values of its inputs are arbitrary."""
    source = torch.zeros(network.source, network.batch, dtype=torch.long)
    target = torch.zeros(network.target, network.batch, dtype=torch.long)
    return TrainingStep(Translator(network), (source, target), (target.flatten(),), loss)


def sample(rng: np.random.Generator) -> TrainingStep:
    """Draw a network, and return its training step."""
    return training_step(draw(rng))
