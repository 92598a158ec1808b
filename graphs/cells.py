"""Networks of searched cells for ImageNet: what NASNet (Zoph et al., CVPR 2018) and AmoebaNet have in common.

A stem and two reduction cells bring the resolution down by 8; then come three stages of normal cells with reduction
cells between them, each of which halves the resolution and doubles the width. A cell reads the outputs of the last two
cells; each of its nodes adds two branches. Auxiliary classifier and drop-path are left out.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from graphs.convolution import CLASSES

STEM_CELLS = 2  # reduction cells before the first stage
STAGES = 3
Branch = tuple[int, str]  # the state that it reads (0 = cell before the last, 1 = last cell, from 2 = nodes), its op


@dataclass(frozen=True)
class Wiring:
    """The nodes of a cell, and the states that make up its output."""

    nodes: tuple[tuple[Branch, Branch], ...]
    concat: tuple[int, ...]  # states that make up the output


@dataclass(frozen=True)
class Genotype:
    """The two cells of a network."""

    normal: Wiring
    reduction: Wiring


class Separable(nn.Module):
    """Twice: ReLU, separable convolution, batch normalisation. The first of the two convolutions has the stride."""

    def __init__(self, channels: int, kernel: int, stride: int) -> None:
        super().__init__()
        halves = []
        for step in (stride, 1):
            depthwise = nn.Conv2d(channels, channels, kernel, step, kernel // 2, groups=channels, bias=False)
            pointwise = nn.Conv2d(channels, channels, 1, bias=False)
            halves.append(nn.Sequential(nn.ReLU(), depthwise, pointwise, nn.BatchNorm2d(channels)))
        self.halves = nn.Sequential(*halves)

    def forward(self, x: Tensor) -> Tensor:
        """(B, channels, H, W) -> (B, channels, H / stride, W / stride)."""
        return self.halves(x)


class ReluConvNorm(nn.Sequential):
    """ReLU, convolution, batch normalisation."""

    def __init__(self, inputs: int, outputs: int, kernel: int | tuple[int, int], stride: int | tuple[int, int] = 1):
        height, width = (kernel, kernel) if isinstance(kernel, int) else kernel
        conv = nn.Conv2d(inputs, outputs, kernel, stride, (height // 2, width // 2), bias=False)
        super().__init__(nn.ReLU(), conv, nn.BatchNorm2d(outputs))


class Halve(nn.Module):
    """Halves the resolution by two 1 x 1 convolutions: of every second pixel, and of that diagonally next to it."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.even = nn.Conv2d(inputs, outputs // 2, 1, bias=False)
        self.odd = nn.Conv2d(inputs, outputs - outputs // 2, 1, bias=False)
        self.norm = nn.BatchNorm2d(outputs)

    def forward(self, x: Tensor) -> Tensor:
        """(B, inputs, H, W) -> (B, outputs, H / 2, W / 2), rounded up."""
        x = F.relu(x)
        shifted = F.pad(x, (0, 1, 0, 1))[:, :, 1:, 1:]
        pixels = [F.avg_pool2d(values, 1, 2) for values in (x, shifted)]
        return self.norm(torch.cat([self.even(pixels[0]), self.odd(pixels[1])], dim=1))


def branch_op(kind: str, channels: int, stride: int) -> nn.Module:
    """Return the module of a branch; `kind` is the name of its op."""
    if kind == "identity":
        return nn.Identity()
    if kind == "average":
        return nn.AvgPool2d(3, stride, 1, count_include_pad=False)
    if kind == "maximum":
        return nn.MaxPool2d(3, stride, 1)
    if kind == "maximum2":
        return nn.MaxPool2d(2, stride)
    if kind == "1x1":
        return ReluConvNorm(channels, channels, 1, stride)
    if kind == "3x3":
        inner = channels // 4
        halves = ReluConvNorm(inner, inner, 3, stride), ReluConvNorm(inner, channels, 1)
        return nn.Sequential(ReluConvNorm(channels, inner, 1), *halves)
    if kind == "1x7-7x1":
        inner = channels // 4
        return nn.Sequential(
            ReluConvNorm(channels, inner, 1),
            ReluConvNorm(inner, inner, (1, 7), (1, stride)),
            ReluConvNorm(inner, inner, (7, 1), (stride, 1)),
            ReluConvNorm(inner, channels, 1),
        )
    return Separable(channels, int(kind.removeprefix("separable")), stride)


class Node(nn.Module):
    """The sum of two branches."""

    def __init__(self, branches: tuple[Branch, Branch], channels: int, reduction: bool) -> None:
        super().__init__()
        (_, left), (_, right) = branches
        strides = [2 if reduction and source < 2 else 1 for source, _ in branches]
        self.left, self.right = branch_op(left, channels, strides[0]), branch_op(right, channels, strides[1])

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """Two feature maps -> one, (B, channels, H, W)."""
        return self.left(x) + self.right(y)


class Cell(nn.Module):
    """A normal or a reduction cell."""

    def __init__(
        self, wiring: Wiring, inputs: tuple[int, int], channels: int, reduction: bool, before_is_larger: bool
    ) -> None:
        super().__init__()
        before = Halve(inputs[0], channels) if before_is_larger else ReluConvNorm(inputs[0], channels, 1)
        self.fit = nn.ModuleList([before, ReluConvNorm(inputs[1], channels, 1)])
        self.sources = [(left, right) for (left, _), (right, _) in wiring.nodes]
        self.concat = wiring.concat
        self.nodes = nn.ModuleList([Node(branches, channels, reduction) for branches in wiring.nodes])
        self.channels = channels * len(wiring.concat)

    def forward(self, before: Tensor, last: Tensor) -> Tensor:
        """Outputs of the cell before the last and of the last one -> this cell's output."""
        states = [self.fit[0](before), self.fit[1](last)]
        for (left, right), node in zip(self.sources, self.nodes, strict=True):
            states.append(node(states[left], states[right]))
        return torch.cat([states[i] for i in self.concat], dim=1)


class CellNetwork(nn.Module):
    """Stem, cells, classifier.

    Args:
        genotype: the cells.
        stem: channels of the first convolution.
        channels: channels of a node in the first stage.
        repeats: N, the number of normal cells in a stage.
    """

    def __init__(self, genotype: Genotype, stem: int, channels: int, repeats: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, stem, 3, 2, bias=False), nn.BatchNorm2d(stem))
        plan = [(channels // 2 ** (STEM_CELLS - number), True) for number in range(STEM_CELLS)]
        for stage in range(STAGES):
            plan += [(channels * 2**stage, True)] if stage else []
            plan += [(channels * 2**stage, False)] * repeats
        cells: list[Cell] = []
        inputs, larger = (stem, stem), False
        for width, reduction in plan:
            wiring = genotype.reduction if reduction else genotype.normal
            cells.append(Cell(wiring, inputs, width, reduction, larger))
            inputs, larger = (inputs[1], cells[-1].channels), reduction
        self.cells = nn.ModuleList(cells)
        self.classifier = nn.Linear(inputs[1], CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        """(B, 3, H, W) -> logits (B, classes)."""
        before = last = self.stem(images)
        for cell in self.cells:
            before, last = last, cell(before, last)
        return self.classifier(F.relu(last).mean((2, 3)))
