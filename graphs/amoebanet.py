"""amoebanet: AmoebaNet-A (Real et al., "Regularized Evolution for Image Classifier Search", AAAI 2019) on ImageNet.

A benchmark of GDP (2019). Evolved cells (the paper's figure 6) in the frame of NASNet. N, the width F and the batch
vary, on images of 224 x 224 pixels; the first test graph is the paper's N = 6, F = 190 (table 2: 86.7 million
parameters) on 331 x 331, at a batch of 8.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

from graphs.cells import CellNetwork, Genotype, Wiring
from graphs.convolution import classification_step
from graphs.models import ModelFamily, deal
from graphs.training_step import TrainingStep

AMOEBANET_A = Genotype(
    normal=Wiring(
        nodes=(
            ((1, "average"), (1, "maximum")),
            ((0, "separable3"), (0, "identity")),
            ((1, "identity"), (0, "average")),
            ((1, "separable3"), (2, "separable5")),
            ((5, "average"), (1, "separable3")),
        ),
        concat=(0, 3, 4, 6),
    ),
    reduction=Wiring(
        nodes=(
            ((0, "separable3"), (1, "average")),
            ((1, "maximum"), (2, "separable7")),
            ((0, "maximum"), (1, "maximum")),
            ((4, "separable3"), (1, "1x7-7x1")),
            ((0, "average"), (1, "separable7")),
        ),
        concat=(2, 3, 4, 5, 6),
    ),
)
AMOEBANET_D = Genotype(
    normal=Wiring(
        nodes=(
            ((0, "1x1"), (0, "maximum")),
            ((0, "identity"), (1, "1x7-7x1")),
            ((1, "1x1"), (1, "1x7-7x1")),
            ((2, "maximum"), (2, "identity")),
            ((0, "average"), (5, "1x1")),
        ),
        concat=(1, 3, 4, 6),
    ),
    reduction=Wiring(
        nodes=(
            ((1, "maximum2"), (1, "maximum")),
            ((2, "identity"), (0, "3x3")),
            ((2, "1x7-7x1"), (2, "maximum")),
            ((3, "identity"), (0, "maximum2")),
            ((2, "average"), (3, "1x1")),
        ),
        concat=(4, 5, 6),
    ),
)
"""AmoebaNet-D of the same paper, with the output of normal cells as in its authors' program (the paper has 4, 5, 6)."""


@dataclass(frozen=True)
class Network:
    """The sizes that differ between the networks of this family."""

    repeats: int  # N, normal cells of a stage
    filters: int  # F, channels of a node in the first stage
    batch: int  # images
    resolution: int = 224  # pixels a side
    stem: int = 32  # channels of the first convolution


def training_step(network: Network) -> TrainingStep:
    """Return a training step of a network, on the default device; the values of its inputs are arbitrary."""
    module = CellNetwork(AMOEBANET_A, network.stem, network.filters, network.repeats)
    return classification_step(module, network.batch, network.resolution)


PAPER = Network(6, 190, 8, 331, 96)
GRID = [Network(*sizes) for sizes in product((3, 4, 5, 6), (48, 64, 96, 128), (32, 48, 64))]

FAMILIES = (
    ModelFamily(
        "amoebanet",
        "AmoebaNet-A on ImageNet; cells, width and batch vary (test:0 is the paper's N = 6, F = 190 at batch 8)",
        training_step,
        deal((PAPER,), GRID),
    ),
)
