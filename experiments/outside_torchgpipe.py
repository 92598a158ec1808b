"""Does the simulator order the settings of GPipe that torchgpipe measured on Tesla P40?

python -m experiments.outside_torchgpipe [--data ../shared/data/outside/torchgpipe]

kakaobrain/torchgpipe (arXiv 2004.09910, BSD-3) measured samples per second of a U-Net with 241 leaf modules and of
AmoebaNet-D with 24 layers, on 1 to 8 P40: cuts between modules, micro-batches, and activation checkpoints of all
micro-batches, or of all but the last. Times of ops are those of the default cost model for the P40, of which no op was
measured. Links are PCIe 3.0. Each device runs the forward passes of all micro-batches, and then their backward passes
in the opposite order. Before a backward pass it computes the forward pass again, where that is checkpointed. Skips go
from the stage that makes them to the one that reads them. cuDNN was an old one, so that ratios between settings count,
not the times.
"""

from __future__ import annotations

import csv
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from scipy.stats import spearmanr
from torch import Tensor, nn

from experiments.command import command
from experiments.outside_amp import layer_times
from experiments.pipeline_steps import FIXED_ORDER, Program
from experiments.tables import markdown
from graphs.amoebanet import AMOEBANET_D
from graphs.cells import Cell
from placeto.capture.trace import capture_training
from placeto.problem.cluster import Cluster, load_cluster

DEPTH, CONVOLUTIONS, CHANNELS = 5, 5, 64
"""Levels of the U-Net, convolutions of each, and channels of the first."""
REPEATS, FILTERS = 6, 256
"""Normal cells of a stage of AmoebaNet-D, and channels of a node in the first: its size is (18, 256)."""


class Setting(NamedTuple):
    """One that was measured."""

    model: str
    name: str
    batch: int
    micro_batches: int
    leaves: tuple[int, ...]  # leaf modules of each stage
    checkpointed: int  # micro-batches whose forward pass runs again
    samples_s: float


def read_settings(folder: Path) -> list[Setting]:
    """All of them."""
    found = []
    with (folder / "speed.csv").open() as file:
        for row in csv.DictReader(file):
            count, cuts = int(row["chunks"]), row["balance"].split(" ")[0]
            again = {"no": 0, "always": count}.get(row["checkpoint"], count - 1)
            leaves, speed = tuple(map(int, cuts.split(","))), float(row["samples"].removesuffix("/s"))
            model = row["model"].split(" ")[0]
            found.append(Setting(model, row["experiment"], int(row["batch"]), count, leaves, again, speed))
    return found


class Keep(nn.Module):
    """Keeps its input for the way up."""


class Join(nn.Module):
    """Joins its input with what was kept last."""


class CellOfTwo(nn.Module):
    """A cell, which hands on its output and that of the cell before it."""

    def __init__(self, cell: Cell) -> None:
        super().__init__()
        self.cell = cell

    def forward(self, x: Tensor | tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Outputs of the last cell and of the one before it -> the same, a cell later."""
        last, before = x if isinstance(x, tuple) else (x, x)
        return self.cell(before, last), last


class Classifier(nn.Linear):
    """Classifies the mean over pixels of the last cell's output."""

    def forward(self, x: tuple[Tensor, Tensor]) -> Tensor:  # type: ignore[override]
        """(B, C, H, W) -> (B, classes)."""
        return super().forward(x[0].mean((2, 3)))


def amoebanet(filters: int = FILTERS) -> list[nn.Module]:
    """The layers of AmoebaNet-D in their order."""
    stem = filters // 4
    made: list[nn.Module] = [nn.Sequential(nn.ReLU(), nn.Conv2d(3, stem, 3, 2, 1, bias=False), nn.BatchNorm2d(stem))]
    inputs, larger = (stem, stem), False
    plan = [(filters // 2, True), (filters, True), *[(filters, False)] * REPEATS]
    for width in (2 * filters, 4 * filters):
        plan += [(width, True), *[(width, False)] * REPEATS]
    for width, reduction in plan:
        cell = Cell(AMOEBANET_D.reduction if reduction else AMOEBANET_D.normal, inputs, width, reduction, larger)
        made.append(CellOfTwo(cell))
        inputs, larger = (inputs[1], cell.channels), reduction
    return [*made, Classifier(inputs[1], 1000)]


def unet() -> list[nn.Module]:
    """The leaf modules of the U-Net in their order."""

    def stack(inputs: int, width: int, outputs: int) -> list[nn.Module]:
        sizes, made = [inputs, *[width] * (CONVOLUTIONS - 1), outputs], list[nn.Module]()
        for before, after in pairwise(sizes):
            convolution = nn.Conv2d(before, after, 3, padding=1, bias=False)
            made += [convolution, nn.Dropout2d(0.1), nn.InstanceNorm2d(after), nn.LeakyReLU()]
        return made

    widths, made = [CHANNELS << level for level in range(DEPTH)], list[nn.Module]()
    for inputs, width in zip([3, *widths], widths, strict=False):
        made += [*stack(inputs, width, width), Keep(), nn.MaxPool2d(2)]
    made += stack(widths[-1], 2 * widths[-1], widths[-1])
    for width in reversed(widths):
        made += [nn.Upsample(scale_factor=2), Join(), *stack(2 * width, width // 2, width // 2)]
    return [*made, nn.Conv2d(widths[0] // 2, 1, 1, bias=False)]


class Stages(nn.Module):
    """Modules, divided into stages."""

    def __init__(self, leaves: list[nn.Module], counts: tuple[int, ...]) -> None:
        super().__init__()
        modules = iter(leaves)
        self.stages = nn.ModuleList(nn.ModuleList(next(modules) for _ in range(count)) for count in counts)
        self.crossing: dict[tuple[int, int], int] = {}
        """Stage and later stage -> bytes that go from one to the other in a forward pass."""

    def forward(self, x: Tensor) -> Tensor:
        """(B, 3, H, W) -> what the last module makes."""
        kept, self.crossing = list[tuple[int, Tensor]](), {}
        for number, stage in enumerate(self.stages):
            for leaf in stage.children():
                if isinstance(leaf, Keep):
                    kept.append((number, x))
                elif isinstance(leaf, Join):
                    maker, skip = kept.pop()
                    self._sent(maker, number, skip)
                    x = torch.cat([x, skip], 1)
                else:
                    x = leaf(x)
            if number + 1 < len(self.stages):
                self._sent(number, number + 1, x)
        return x

    def _sent(self, src: int, dst: int, tensors: Tensor | tuple[Tensor, ...]) -> None:
        if src != dst:
            size = sum(each.nbytes for each in (tensors if isinstance(tensors, tuple) else (tensors,)))
            self.crossing[src, dst] = self.crossing.get((src, dst), 0) + size


MODELS: dict[str, tuple[Callable[[], list[nn.Module]], int, Callable[..., Tensor]]] = {
    "unet": (unet, 192, F.binary_cross_entropy_with_logits),
    "amoebanetd": (amoebanet, 224, F.cross_entropy),
}
"""Model -> its modules, pixels a side, and its loss."""


class Parts(NamedTuple):
    """What stages take in one micro-batch."""

    time_us: np.ndarray  # (S, 3) forward, backward, update
    crossing: dict[tuple[int, int], int]  # as of `Stages`


def parts_of(setting: Setting, cluster: Cluster) -> Parts:
    """The captured stages."""
    with torch.device("meta"):
        make, resolution, loss = MODELS[setting.model]
        module, size = Stages(make(), setting.leaves), setting.batch // setting.micro_batches
        images = torch.empty(size, 3, resolution, resolution)
        labels = images[:, :1] if setting.model == "unet" else torch.zeros(size, dtype=torch.long)
    graph = capture_training(module, (images,), loss, targets=(labels,), optimizer="sgd", optimizer_step=True)

    def stage(path: str) -> int:
        return int(path.split(".")[1]) if path.startswith("stages.") else len(setting.leaves) - 1

    module(images)
    return Parts(layer_times(graph, stage, len(setting.leaves), cluster), dict(module.crossing))


def step_us(setting: Setting, parts: Parts, cluster: Cluster) -> float:
    """Microseconds of a step, stage s on device s."""
    boards = tuple(replace(board, overhead_us=0.0) for board in cluster.devices)  # it is in the times of stages
    program, count, last = Program(replace(cluster, devices=boards)), setting.micro_batches, len(setting.leaves)
    into = {stage: [pair for pair in parts.crossing if pair[1] == stage] for stage in range(last)}
    out = {stage: [pair for pair in parts.crossing if pair[0] == stage] for stage in range(last)}

    def add(kind: str, stage: int, number: int, turn: tuple[float, ...], us: float, **fields: Any) -> None:
        program.add(f"{kind}{stage} m{number}", stage, turn, us, fields)

    for number in range(count):
        for stage, (forward_us, _, _) in enumerate(parts.time_us.tolist()):
            inputs = [(f"F{src} m{number}", out[src].index((src, dst))) for src, dst in into[stage]]
            sizes = [parts.crossing[pair] for pair in out[stage]]
            add("F", stage, number, (0.0, number), forward_us, inputs=inputs, outputs=[*sizes, 0])
        for stage in reversed(range(last)):
            own, turn = [(f"F{stage} m{number}", len(out[stage]))], (1.0, count - number)
            if number < setting.checkpointed:
                add("A", stage, number, (*turn, 0.0), float(parts.time_us[stage, 0]), inputs=own, outputs=[0])
                own = [(f"A{stage} m{number}", 0)]
            own += [(f"B{dst} m{number}", into[dst].index((src, dst))) for src, dst in out[stage]]
            sizes = [parts.crossing[pair] for pair in into[stage]]
            add("B", stage, number, (*turn, 1.0), float(parts.time_us[stage, 1]), inputs=own, outputs=[*sizes, 0])
    for stage in range(last):
        add("U", stage, 0, (2.0,), float(parts.time_us[stage, 2]), inputs=[(f"B{stage} m0", len(into[stage]))])
    return program.schedule("unet").makespan_us


@dataclass(frozen=True)
class OutsideTorchgpipe:
    """Read, simulate, compare."""

    data: Path = Path("../shared/data/outside/torchgpipe")
    """folder of speed.csv"""


def main(config: OutsideTorchgpipe) -> None:
    """A table for each model."""
    cluster = load_cluster("8xp40")
    for model in MODELS:
        settings = [each for each in read_settings(config.data) if each.model == model]
        speeds = np.array([1e6 * each.batch / step_us(each, parts_of(each, cluster), cluster) for each in settings])
        measured = np.array([setting.samples_s for setting in settings])
        rows = [[model, "stages", "micro-batches", "measured", "simulated", "over the first, measured", "simulated"]]
        for setting, speed in zip(settings, speeds.tolist(), strict=True):
            cells = [f"{setting.samples_s:.1f}", f"{speed:.1f}"]
            cells += [f"{setting.samples_s / measured[0]:.2f}", f"{speed / speeds[0]:.2f}"]
            rows.append([setting.name, f"{len(setting.leaves)}", f"{setting.micro_batches}", *cells])
        print(f"Samples per second:\n\n{markdown(rows)}\n")
        ratio, rank = speeds / measured, spearmanr(speeds, measured).statistic
        errors = 100 * np.abs(ratio / ratio[0] - 1)[1:]
        print(f"{model}: Spearman {rank:.3f}; speeds over that of the first setting: median error ", end="")
        print(
            f"{np.median(errors):.0f} %, largest {errors.max():.0f} %; simulated / measured {np.median(ratio):.2f}.\n"
        )


if __name__ == "__main__":
    command(main, OutsideTorchgpipe, "outside_torchgpipe", __doc__, FIXED_ORDER)
