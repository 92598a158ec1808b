"""resnet: ResNet-50, -101 and -152 (He et al., CVPR 2016) on ImageNet, and wide ones (Zagoruyko and Komodakis, 2016).

A block halves the resolution in its 3 x 3 convolution, as in torchvision, where the paper's does in its first; all
other sizes are the paper's. Depth, batch and width vary. A residual network is a chain: all that runs in parallel are
the gradients of weights and of activations, and the projections.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import torch.nn.functional as F
from torch import Tensor, nn

from graphs.convolution import CLASSES, ConvNorm, classification_step
from graphs.models import ModelFamily, deal
from graphs.training_step import TrainingStep

STAGES = {50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)}  # blocks of each stage


@dataclass(frozen=True)
class Network:
    """The sizes that differ between the networks of this family."""

    depth: int  # one of `STAGES`
    batch: int  # images
    width: int = 1  # of the 3 x 3 convolutions, over the paper's
    resolution: int = 224  # pixels a side


class Bottleneck(nn.Module):
    """A 1 x 1, a 3 x 3 and a 1 x 1 convolution beside a shortcut."""

    def __init__(self, inputs: int, channels: int, width: int, stride: int) -> None:
        super().__init__()
        outputs, inner = 4 * channels, channels * width
        self.convs = nn.Sequential(
            ConvNorm(inputs, inner, 1),
            ConvNorm(inner, inner, 3, stride),
            ConvNorm(inner, outputs, 1, activation=False),
        )
        same = inputs == outputs and stride == 1
        self.shortcut = nn.Identity() if same else ConvNorm(inputs, outputs, 1, stride, activation=False)

    def forward(self, x: Tensor) -> Tensor:
        """(B, inputs, H, W) -> (B, 4 channels, H / stride, W / stride)."""
        return F.relu(self.convs(x) + self.shortcut(x))


class ResNet(nn.Module):
    """Stem, four stages of bottleneck blocks, classifier."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.stem = nn.Sequential(ConvNorm(3, 64, 7, 2), nn.MaxPool2d(3, 2, 1))
        blocks, inputs = [], 64
        for stage, count in enumerate(STAGES[network.depth]):
            for number in range(count):
                stride = 2 if stage and not number else 1
                blocks.append(Bottleneck(inputs, 64 * 2**stage, network.width, stride))
                inputs = 256 * 2**stage
        self.blocks = nn.Sequential(*blocks)
        self.classifier = nn.Linear(inputs, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        """(B, 3, H, W) -> logits (B, classes)."""
        return self.classifier(self.blocks(self.stem(images)).mean((2, 3)))


def training_step(network: Network) -> TrainingStep:
    """Return a training step of a network, on the default device; the values of its inputs are arbitrary."""
    return classification_step(ResNet(network), network.batch, network.resolution)


PUBLISHED = (Network(50, 32), Network(101, 32), Network(152, 32))
GRID = [Network(*sizes) for sizes in product((50, 101, 152), (16, 24, 32, 48, 64), (1, 2))]

FAMILIES = (
    ModelFamily(
        "resnet",
        "residual networks of 50, 101 and 152 layers on ImageNet (test:0, 1, 2 at batch 32); batch and width vary",
        training_step,
        deal(PUBLISHED, GRID),
    ),
)
