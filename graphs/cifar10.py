"""cifar10: convolutional networks of cells drawn from an ENAS-like space (Pham et al., 2018, section 2.3).

A network is a stem, stages of cells and a classifier. All cells of a network share one drawn wiring: each node
adds two branches, each of which applies an op to the output of one of the two previous cells or of an earlier
node; what no node uses is concatenated. Ops are 3x3 and 5x5 convolutions, normal and separable, 3x3 average and
max pooling, and identity. Between stages a cell halves the resolution and doubles the width.

What decides whether placement matters, on four V100 with NVLink:

- the ratio of work to traffic, which grows with the width: by the default cost model, a 3x3 convolution of 64 feature
  maps of 256 x 32 x 32 takes 4.6 ms, and its output takes 1.4 to 2.8 ms to send; with 48 channels these are 0.25 ms
  and 0.3 to 0.5 ms. A separable convolution is several times cheaper, and its output is as large. Widths are 48 to 320
  in the first stage, and some kinds of ops are drawn more often than others;
- the parallelism of the wiring: nodes read the previous node with a probability of 0 (wide cells), 0.25, 0.5 or,
  in two networks of eleven, 0.9 (a chain, in which hardly anything can run in parallel);
- the batch: 64 to 256 images, halved until a feature map has at most 2**23 * 1.5 elements. Then 71 of the 72 networks
  fit in one device's 16 GB, and the other one, test:1, takes 31.4 GB. Smaller and narrower networks would leave little
  to place but the overhead of launching kernels.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from graphs.family import choice
from graphs.training_step import TrainingStep

OPS = ("conv3", "conv5", "separable3", "separable5", "average", "maximum", "identity")
CLASSES = 10
LARGEST_MAP = 2**23 * 3 // 2  # elements of a feature map in the first stage


@dataclass(frozen=True)
class Network:
    """The properties of a network, all of which are drawn."""

    wiring: tuple[tuple[tuple[int, str], tuple[int, str]], ...]  # per node: two branches (state that it reads, op)
    stages: tuple[int, ...]  # cells of each stage
    width: int  # channels of a node in the first stage
    resolution: int  # height = width of the first stage's feature maps
    batch: int  # images


def draw(rng: np.random.Generator) -> Network:
    """Draw a network."""
    weights = rng.dirichlet([1.5, 0.5, 2.0, 1.0, 0.4, 0.4, 0.5])
    nodes, chain = choice(rng, (4, 5, 6)), choice(rng, (0.0, 0.25, 0.5, 0.9), (3, 3, 3, 2))

    def branch(node: int) -> tuple[int, str]:
        chained = node > 0 and rng.random() < chain
        return (node + 1 if chained else int(rng.integers(node + 2))), choice(rng, OPS, weights)

    width, resolution = choice(rng, (48, 64, 96, 128, 192, 256, 320)), choice(rng, (16, 32))
    batch = choice(rng, (64, 128, 256))
    while batch * width * resolution**2 > LARGEST_MAP:
        batch //= 2
    return Network(
        wiring=tuple((branch(node), branch(node)) for node in range(nodes)),
        stages=choice(rng, ((4, 4), (3, 3, 3), (2, 4, 2), (3, 4, 4), (4, 4, 4), (5, 5), (6, 4), (3, 5, 3))),
        width=width,
        resolution=resolution,
        batch=batch,
    )


class ConvUnit(nn.Module):
    """ReLU, convolution, batch normalisation."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int = 1, separable: bool = False) -> None:
        super().__init__()
        if separable:
            depthwise = nn.Conv2d(inputs, inputs, kernel, stride, kernel // 2, groups=inputs, bias=False)
            self.conv: nn.Module = nn.Sequential(depthwise, nn.Conv2d(inputs, outputs, 1, bias=False))
        else:
            self.conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False)
        self.norm = nn.BatchNorm2d(outputs, affine=False)

    def forward(self, x: Tensor) -> Tensor:
        """(B, inputs, H, W) -> (B, outputs, H / stride, W / stride)."""
        return self.norm(self.conv(F.relu(x)))


def branch_op(kind: str, width: int) -> nn.Module:
    """Return the module of a branch, which keeps the shape; `kind` is the name of its op."""
    if kind == "identity":
        return nn.Identity()
    if kind == "average":
        return nn.AvgPool2d(3, 1, 1, count_include_pad=False)
    if kind == "maximum":
        return nn.MaxPool2d(3, 1, 1)
    return ConvUnit(width, width, int(kind[-1]), separable=kind.startswith("separable"))


class Node(nn.Module):
    """The sum of two branches."""

    def __init__(self, left: str, right: str, width: int) -> None:
        super().__init__()
        self.left, self.right = branch_op(left, width), branch_op(right, width)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """Two feature maps (B, width, H, W) -> one."""
        return self.left(x) + self.right(y)


class Cell(nn.Module):
    """Nodes that add two branches each."""

    def __init__(self, network: Network, inputs: tuple[int, int], width: int, strides: tuple[int, int]) -> None:
        super().__init__()
        self.wiring = network.wiring
        pairs = zip(inputs, strides, strict=True)
        self.fit = nn.ModuleList([ConvUnit(channels, width, 1, stride) for channels, stride in pairs])
        self.nodes = nn.ModuleList([Node(left, right, width) for (_, left), (_, right) in network.wiring])
        self.used = {source for node in network.wiring for source, _ in node}
        self.loose = [2 + node for node in range(len(network.wiring)) if 2 + node not in self.used]
        self.channels = width * len(self.loose)

    def forward(self, before: Tensor, last: Tensor) -> Tensor:
        """Outputs of the cell before the last and of the last one -> this cell's output."""
        inputs = zip(self.fit, (before, last), strict=True)
        states = [fit(x) if state in self.used else x for state, (fit, x) in enumerate(inputs)]
        for ((left, _), (right, _)), node in zip(self.wiring, self.nodes, strict=True):
            states.append(node(states[left], states[right]))
        return torch.cat([states[i] for i in self.loose], dim=1)


class CellNetwork(nn.Module):
    """Stem, cells, classifier."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        stride = 32 // network.resolution
        self.stem = nn.Sequential(
            nn.Conv2d(3, network.width, 3, stride, 1, bias=False), nn.BatchNorm2d(network.width, affine=False)
        )
        cells: list[Cell] = []
        channels, scales = [network.width, network.width], [1, 1]
        for stage, count in enumerate(network.stages):
            for _ in range(count):
                strides = (2**stage // scales[-2], 2**stage // scales[-1])
                cells.append(Cell(network, (channels[-2], channels[-1]), network.width * 2**stage, strides))
                channels.append(cells[-1].channels)
                scales.append(2**stage)
        self.cells = nn.ModuleList(cells)
        self.are_read = [False] * len(cells)  # a cell that none of the two next cells reads isn't computed
        for number in reversed(range(len(cells))):
            after = [number + ahead for ahead in (1, 2) if number + ahead < len(cells)]
            reads = [self.are_read[later] and 2 - (later - number) in cells[later].used for later in after]
            self.are_read[number] = number == len(cells) - 1 or any(reads)
        self.classifier = nn.Linear(channels[-1], CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        """(B, 3, 32, 32) -> logits (B, 10)."""
        before = last = self.stem(images)
        for cell, is_read in zip(self.cells, self.are_read, strict=True):
            before, last = last, cell(before, last) if is_read else last
        return self.classifier(F.relu(last).mean((2, 3)))


def training_step(network: Network) -> TrainingStep:
    """Return a training step of a network, on the default device; the values of its inputs are arbitrary."""
    images = torch.empty(network.batch, 3, 32, 32)
    labels = torch.zeros(network.batch, dtype=torch.long)
    return TrainingStep(CellNetwork(network), (images,), (labels,), F.cross_entropy)


def sample(rng: np.random.Generator) -> TrainingStep:
    """Draw a network, and return its training step."""
    return training_step(draw(rng))
