"""nasnet: NASNet-A (Zoph et al., "Learning Transferable Architectures", CVPR 2018) on ImageNet.

The benchmark of Placeto (2019). Cells of five nodes with two branches each, most of them separable convolutions; a cell
also reads the cell before the last, so that two cells overlap. N, the width and the batch vary. The paper's small
network ("4 @ 1056", 5.3 million parameters, 224 x 224 pixels) and its large one ("6 @ 4032", 88.9 million, 331 x 331)
are the first test graphs; all others take 224 x 224 pixels. Batches are ours.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

from graphs.cells import CellNetwork, Genotype, Wiring
from graphs.convolution import classification_step
from graphs.models import ModelFamily, deal
from graphs.training_step import TrainingStep

NASNET_A = Genotype(
    normal=Wiring(
        nodes=(
            ((1, "separable5"), (0, "separable3")),
            ((0, "separable5"), (0, "separable3")),
            ((1, "average"), (0, "identity")),
            ((0, "average"), (0, "average")),
            ((1, "separable3"), (1, "identity")),
        ),
        concat=(0, 2, 3, 4, 5, 6),
    ),
    reduction=Wiring(
        nodes=(
            ((1, "separable5"), (0, "separable7")),
            ((1, "maximum"), (0, "separable7")),
            ((1, "average"), (0, "separable5")),
            ((3, "identity"), (2, "average")),
            ((2, "separable3"), (1, "maximum")),
        ),
        concat=(3, 4, 5, 6),
    ),
)


@dataclass(frozen=True)
class Network:
    """The sizes that differ between the networks of this family."""

    repeats: int  # N, normal cells of a stage
    filters: int  # channels before the classifier: 24 times those of a node in the first stage
    batch: int  # images
    resolution: int = 224  # pixels a side
    stem: int = 32  # channels of the first convolution


def training_step(network: Network) -> TrainingStep:
    """Return a training step of a network, on the default device; the values of its inputs are arbitrary."""
    module = CellNetwork(NASNET_A, network.stem, network.filters // 24, network.repeats)
    return classification_step(module, network.batch, network.resolution)


MOBILE, LARGE = Network(4, 1056, 64), Network(6, 4032, 8, 331, 96)
GRID = [Network(*sizes) for sizes in product((3, 4, 5, 6), (768, 1056, 1536, 2112), (32, 48, 64))]

FAMILIES = (
    ModelFamily(
        "nasnet",
        "NASNet-A on ImageNet; cells, width and batch vary (test:0 is 4 @ 1056 at batch 64, test:1 is 6 @ 4032 at 8)",
        training_step,
        deal((MOBILE, LARGE), GRID),
    ),
)
