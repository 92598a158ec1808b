"""wavenet: WaveNet, a generative model of raw audio (van den Oord et al., 2016).

A benchmark of GDP (2019): 2 stacks of 18 layers in all, and 4 stacks of 36. A stack's causal convolutions are dilated
by 1, 2, 4, ...; a layer multiplies a tanh by a sigmoid, each of a convolution of its own, and adds to the residual and
to the skip path. Channels, samples and batch vary, in ranges of ours, as the papers give none. Sound is in 256 levels
(mu-law).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from graphs.models import ModelFamily, by_turns, deal
from graphs.training_step import TrainingStep

LEVELS = 256


@dataclass(frozen=True)
class Network:
    """The sizes that differ between the networks of this family."""

    stacks: int
    layers: int  # of all stacks together
    channels: int = 256  # of all paths
    samples: int = 8000  # half a second
    batch: int = 8


class CausalConv(nn.Module):
    """A convolution over the present sample and one of the past."""

    def __init__(self, inputs: int, outputs: int, dilation: int) -> None:
        super().__init__()
        self.dilation = dilation
        self.conv = nn.Conv1d(inputs, outputs, 2, dilation=dilation)

    def forward(self, x: Tensor) -> Tensor:
        """(B, inputs, T) -> (B, outputs, T)."""
        return self.conv(F.pad(x, (self.dilation, 0)))


class Layer(nn.Module):
    """A gated activation unit with its residual and skip outputs (figure 4 of the paper); the last has no residual."""

    def __init__(self, channels: int, dilation: int, last: bool) -> None:
        super().__init__()
        self.filter, self.gate = CausalConv(channels, channels, dilation), CausalConv(channels, channels, dilation)
        self.residual = nn.Identity() if last else nn.Conv1d(channels, channels, 1)
        self.skip = nn.Conv1d(channels, channels, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """(B, C, T) -> residual path (B, C, T), skip path (B, C, T)."""
        gated = torch.tanh(self.filter(x)) * torch.sigmoid(self.gate(x))
        return x + self.residual(gated), self.skip(gated)


class WaveNet(nn.Module):
    """Embedding, a causal convolution, stacks of layers, and two 1 x 1 convolutions over the sum of the skip paths."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        channels, depth = network.channels, network.layers // network.stacks
        self.embedding = nn.Embedding(LEVELS, channels)
        self.first = CausalConv(channels, channels, 1)
        last = network.layers - 1
        dilations = enumerate(2 ** (number % depth) for number in range(network.layers))
        self.layers = nn.ModuleList([Layer(channels, dilation, number == last) for number, dilation in dilations])
        self.hidden, self.output = nn.Conv1d(channels, channels, 1), nn.Conv1d(channels, LEVELS, 1)

    def forward(self, samples: Tensor) -> Tensor:
        """Samples (B, T) -> logits (B, levels, T)."""
        x = self.first(self.embedding(samples).transpose(1, 2))
        x, total = self.layers[0](x)
        for layer in self.layers[1:]:
            x, skip = layer(x)
            total = total + skip
        return self.output(F.relu(self.hidden(F.relu(total))))


def training_step(network: Network) -> TrainingStep:
    """Return a training step of a network, on the default device; the values of its inputs are arbitrary."""
    samples = torch.zeros(network.batch, network.samples, dtype=torch.long)
    return TrainingStep(WaveNet(network), (samples,), (samples,), F.cross_entropy)


def _family(stacks: int, layers: int) -> ModelFamily:
    shapes = ((4000, 4), (4000, 8), (4000, 16), (8000, 2), (8000, 4), (8000, 8), (16000, 2), (16000, 4))
    grid = [Network(stacks, layers, c, *shape) for c, shape in product((64, 128, 192, 256, 320), shapes)]
    about = f"WaveNet of {stacks} stacks and {layers} layers; channels, samples and batch vary"
    sizes = "test:0 has 256 channels and 8 x 8000 samples"
    networks = deal((Network(stacks, layers),), grid)
    return ModelFamily(f"wavenet-{stacks}x{layers}", f"{about} ({sizes})", training_step, networks)


_DEPTHS = tuple(_family(*sizes) for sizes in ((2, 18), (4, 36)))
FAMILIES = (
    by_turns("wavenet", "WaveNet of 18 and 36 layers by turns: the members of wavenet-2x18 and wavenet-4x36", _DEPTHS),
    *_DEPTHS,
)
