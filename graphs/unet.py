"""unet: U-net (Ronneberger et al., MICCAI 2015, arXiv 1505.04597) for the segmentation of images.

The way down is a pair of convolutions on each level, with half the resolution and twice the channels of the level
before. On each level of the way up, a pair of convolutions reads the result of the level below and that of the way
down on the same level. Convolutions are padded and normalised, as is usual since the paper, which has neither. Depth,
channels, resolution, batch and micro-batches vary. The paper's network has four levels below the first one, which has
64 channels, and two classes. What each level keeps for the way up is read long after it was made.

Legend: B images, H x W pixels, C channels.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor, nn

from graphs.convolution import ConvNorm, loss
from graphs.microbatches import in_micro_batches
from graphs.models import ModelFamily, deal
from graphs.training_step import TrainingStep

CLASSES = 2


@dataclass(frozen=True)
class Network:
    """The sizes that differ between the networks of this family."""

    levels: int  # number of levels below the first
    channels: int  # of the first level
    resolution: int  # pixels a side
    batch: int  # images, of all micro-batches together
    micro_batches: int = 1


def pair(inputs: int, outputs: int) -> nn.Sequential:
    """Two 3 x 3 convolutions."""
    return nn.Sequential(ConvNorm(inputs, outputs, 3), ConvNorm(outputs, outputs, 3))


class UNet(nn.Module):
    """The way down, the way up, and a classifier of each pixel."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        channels = [network.channels << level for level in range(network.levels + 1)]
        self.down = nn.ModuleList(
            pair(before, after) for before, after in zip([3, *channels[:-1]], channels, strict=True)
        )
        self.pool = nn.MaxPool2d(2)
        self.widen = nn.ModuleList(nn.ConvTranspose2d(2 * c, c, 2, 2) for c in channels[-2::-1])
        self.up = nn.ModuleList(pair(2 * c, c) for c in channels[-2::-1])
        self.classifier = nn.Conv2d(network.channels, CLASSES, 1)

    def forward(self, x: Tensor) -> Tensor:
        """(B, 3, H, W) -> (B, classes, H, W)."""
        kept = [self.down[0](x)]
        for level in self.down[1:]:
            kept.append(level(self.pool(kept[-1])))
        x = kept.pop()
        for widen, level in zip(self.widen, self.up, strict=True):
            x = level(torch.cat([kept.pop(), widen(x)], 1))
        return self.classifier(x)


def training_step(network: Network) -> TrainingStep:
    """Return a training step of a network, on the default device; the values of its inputs are arbitrary."""
    images = torch.empty(network.batch, 3, network.resolution, network.resolution)
    labels = torch.zeros(network.batch, network.resolution, network.resolution, dtype=torch.long)
    return in_micro_batches(TrainingStep(UNet(network), (images,), (labels,), loss), network.micro_batches)


PAPER = Network(4, 64, 512, 4)
GRID = [
    Network(levels, channels, resolution, batch, micro_batches)
    for levels, channels, (resolution, batch), micro_batches in product(
        (3, 4, 5), (32, 48, 64), ((256, 16), (512, 8)), (1, 2, 4)
    )
]

FAMILIES = (
    ModelFamily(
        "unet",
        "U-net; levels, channels, resolution, batch and micro-batches vary (test:0 is the paper's size at 512 pixels)",
        training_step,
        deal((PAPER,), GRID),
    ),
)
