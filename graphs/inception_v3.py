"""inception_v3: Inception-v3 (Szegedy et al., "Rethinking the Inception Architecture", CVPR 2016) on ImageNet.

A benchmark of Mirhoseini et al. (2017), of Placeto (2019) and of GDP (2019, at batches 32 and 64). Batch, resolution
and width vary; the paper's own width is 1 and its resolution 299 (with much less, nothing is left for the auxiliary
classifier). Kernels, channels and paddings are those of torchvision's model, and so are their numbers of parameters and
multiply-adds. Blocks have three or four parallel branches of uneven cost, two of which fork again in the last blocks.
The auxiliary classifier takes part in training; dropout is left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor, nn

from graphs.convolution import CLASSES, ConvNorm, classification_step, scaled
from graphs.models import ModelFamily, deal
from graphs.training_step import TrainingStep

Layer = tuple[int, int | str]  # output channels; kernel size, or what else the layer is
Branch = tuple[Layer, ...]


@dataclass(frozen=True)
class Network:
    """The sizes that differ between the networks of this family."""

    batch: int  # images
    resolution: int = 299  # pixels a side
    width: float = 1.0  # of all channels, over the paper's


STEM: Branch = ((32, "3/2"), (32, "3 valid"), (64, 3), (0, "maximum/2"), (80, 1), (192, "3 valid"), (0, "maximum/2"))


def block35(pooled: int) -> tuple[Branch, ...]:
    """Branches of a 35 x 35 block (figure 5 of the paper)."""
    return ((64, 1),), ((48, 1), (64, 5)), ((64, 1), (96, 3), (96, 3)), ((0, "average"), (pooled, 1))


REDUCTION35: tuple[Branch, ...] = ((384, "3/2"),), ((64, 1), (96, 3), (96, "3/2")), ((0, "maximum/2"),)


def block17(middle: int) -> tuple[Branch, ...]:
    """Branches of a 17 x 17 block (figure 6)."""
    m = middle
    double = ((m, 1), (m, "7x1"), (m, "1x7"), (m, "7x1"), (192, "1x7"))
    return ((192, 1),), ((m, 1), (m, "1x7"), (192, "7x1")), double, ((0, "average"), (192, 1))


REDUCTION17: tuple[Branch, ...] = (
    ((192, 1), (320, "3/2")),
    ((192, 1), (192, "1x7"), (192, "7x1"), (192, "3/2")),
    ((0, "maximum/2"),),
)
BLOCK8: tuple[Branch, ...] = (  # figure 7
    ((320, 1),),
    ((384, 1), (384, "fork")),
    ((448, 1), (384, 3), (384, "fork")),
    ((0, "average"), (192, 1)),
)
AUXILIARY: Branch = ((0, "average5/3"), (128, 1), (768, "5 valid"))
BODY = (block35(32), block35(64), block35(64), REDUCTION35, block17(128), block17(160), block17(160), block17(192))
HEAD = (REDUCTION17, BLOCK8, BLOCK8)


class Fork(nn.Module):
    """A 1 x 3 and a 3 x 1 convolution of the same input, concatenated."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.wide, self.tall = ConvNorm(inputs, outputs, (1, 3)), ConvNorm(inputs, outputs, (3, 1))

    def forward(self, x: Tensor) -> Tensor:
        """(B, inputs, H, W) -> (B, 2 outputs, H, W)."""
        return torch.cat([self.wide(x), self.tall(x)], dim=1)


class Chain(nn.Sequential):
    """The layers of a branch, one after the other."""

    def __init__(self, inputs: int, branch: Branch, width: float) -> None:
        layers = []
        for channels, kind in branch:
            layer, inputs = _layer(inputs, scaled(channels, width), kind)
            layers.append(layer)
        super().__init__(*layers)
        self.channels = inputs


def _layer(inputs: int, outputs: int, kind: int | str) -> tuple[nn.Module, int]:
    """Return a layer, and the number of its output channels."""
    if isinstance(kind, int):
        return ConvNorm(inputs, outputs, kind), outputs
    pools: dict[str, nn.Module] = {
        "average": nn.AvgPool2d(3, 1, 1),
        "average5/3": nn.AvgPool2d(5, 3),
        "maximum/2": nn.MaxPool2d(3, 2),
    }
    if kind in pools:
        return pools[kind], inputs
    if kind == "fork":
        return Fork(inputs, outputs), 2 * outputs
    if "x" in kind:
        height, width = kind.split("x")
        return ConvNorm(inputs, outputs, (int(height), int(width))), outputs
    return ConvNorm(inputs, outputs, int(kind[0]), stride=2 if kind.endswith("/2") else 1, padding=0), outputs


class Block(nn.Module):
    """Parallel branches, concatenated."""

    def __init__(self, inputs: int, branches: tuple[Branch, ...], width: float) -> None:
        super().__init__()
        chains = [Chain(inputs, branch, width) for branch in branches]
        self.branches = nn.ModuleList(chains)
        self.channels = sum(chain.channels for chain in chains)

    def forward(self, x: Tensor) -> Tensor:
        """(B, inputs, H, W) -> (B, channels, H, W), or half of H and W."""
        return torch.cat([branch(x) for branch in self.branches], dim=1)


class Classifier(nn.Module):
    """Mean over the pixels, then a linear layer."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """(B, inputs, H, W) -> logits (B, classes)."""
        return self.linear(x.mean((2, 3)))


class InceptionV3(nn.Module):
    """Stem, blocks and classifier, with the auxiliary classifier behind the 17 x 17 blocks."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        width = network.width
        self.stem = Chain(3, STEM, width)
        channels = self.stem.channels
        stages = []
        for blocks in (BODY, HEAD):
            stage: list[Block] = []
            for branches in blocks:
                stage.append(Block(channels, branches, width))
                channels = stage[-1].channels
            stages.append(nn.Sequential(*stage))
        self.body, self.head = stages
        self.classifier = Classifier(channels)
        chain = Chain(self.body[-1].channels, AUXILIARY, width)  # type: ignore[arg-type]
        self.auxiliary = nn.Sequential(chain, Classifier(chain.channels))

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """(B, 3, H, W) -> logits (B, classes), and those of the auxiliary classifier."""
        x = self.body(self.stem(images))
        return self.classifier(self.head(x)), self.auxiliary(x)


def training_step(network: Network) -> TrainingStep:
    """Return a training step of a network, on the default device; the values of its inputs are arbitrary."""
    return classification_step(InceptionV3(network), network.batch, network.resolution)


PUBLISHED = (Network(32), Network(64))
GRID = [Network(*sizes) for sizes in product((16, 24, 32, 48, 64), (299, 331, 363), (0.75, 1.0, 1.25))]

FAMILIES = (
    ModelFamily(
        "inception_v3",
        "Inception-v3 on ImageNet; batch, resolution and width vary (test:0 is the paper's at batch 32, test:1 at 64)",
        training_step,
        deal(PUBLISHED, GRID),
    ),
)
