"""Are placements as good as they were? Makespans of twelve cells beside a record that is kept.

python -m experiments.gate [--record] [--cells NAME ...] [--workers 2]

Six graphs of one batch and six transformers in micro-batches are placed with a number of simulations, so that neither
the machine nor its load has a say. It fails, with exit code 1, where the mean over cells is worse than the record by
1 %, or a cell by 4 %. Who makes placements better on purpose, or changes graphs or costs, records anew and says why.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import tyro

from experiments.harness import measure_cells, problem_of
from experiments.tables import markdown
from graphs.llama import Network, Size, training_step
from placeto.capture.trace import capture_training
from placeto.placers import load_placer
from placeto.problem.cluster import load_cluster
from placeto.problem.graph import ComputationGraph
from placeto.problem.problem import PlacementProblem

RECORD = Path(__file__).parent / "data" / "gate.json"
MEAN, CELL = 0.01, 0.04  # shares by which the mean, and a cell, may be worse
SIMULATIONS, SEEDS = 300, 2
"""Of each cell."""
ONE_BATCH = {
    f"{graph} on {cluster}": (graph, cluster)
    for graph, cluster in (
        ("cifar10:test:0", "4xv100"),
        ("nmt:test:0", "4xv100"),
        ("ptb:test:0", "8xh100"),
        ("inception_v3:test:0", "2xv100"),
        ("transformer_xl:test:0", "4xv100"),
        ("moe:test:0", "2x8xh100"),
    )
}
IN_PARTS = {
    f"transformer of {layers} layers in {count} on {cluster}": (layers, count, cluster)
    for layers, count, cluster in (
        (12, 16, "2x4xv100"),
        (12, 8, "2xv100+2xp100"),
        (12, 4, "4xa100"),
        (6, 16, "2x8xh100"),
        (6, 8, "2x4xv100"),
        (6, 8, "4xv100"),
    )
}
CELLS = (*ONE_BATCH, *IN_PARTS)
Found = dict[str, tuple[str, float]]
"""Of each cell, the hash of the problem, and the makespan in microseconds."""


@dataclass(frozen=True)
class Gate:
    """Place, and compare with the record."""

    record: bool = False
    """keep what is found as the record, for comparison from now on"""
    cells: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME")] = CELLS
    """which of the cells"""
    file: Path = RECORD
    """the record"""
    workers: int | None = None
    """processes; all cores if not given"""


@cache
def transformer(layers: int, count: int) -> ComputationGraph:
    """The step of a decoder-only transformer in micro-batches."""
    with torch.device("meta"):
        step = training_step(Network(Size(layers, 1024, 16, 16, 2816), length=512, batch=32))
    return capture_training(step.module, step.inputs, step.loss, targets=step.targets, micro_batches=count)


def problem(cell: str) -> PlacementProblem:
    """What is placed in a cell."""
    if cell in ONE_BATCH:
        return problem_of(*ONE_BATCH[cell])
    layers, count, cluster = IN_PARTS[cell]
    return PlacementProblem(transformer(layers, count), load_cluster(cluster))


def measure(cell: str) -> tuple[str, float]:
    """Hash of the problem, and its makespan by the default placer in microseconds, a geometric mean over seeds."""
    placed, placer = problem(cell), load_placer("placeto")
    found = [placer(placed, simulations=SIMULATIONS, seed=seed).makespan_us for seed in range(SEEDS)]
    return placed.hash, float(np.exp(np.mean(np.log(found))))


def compare(found: Found, kept: Found) -> tuple[list[list[str]], list[str]]:
    """Lines of the table, and a sentence for each reason to fail, of what was found beside the record."""
    lines, wrong, change = [], [], []
    for cell, (of, us) in found.items():
        if cell not in kept or kept[cell][0] != of:
            wrong.append(f"{cell}: the record is of another graph, cluster or costs, or has none: see --record")
            continue
        ratio = us / kept[cell][1]
        change.append(ratio)
        lines.append([cell, f"{us / 1e3:.3f}", f"{kept[cell][1] / 1e3:.3f}", f"{ratio:.4f}"])
        if ratio > 1 + CELL:
            wrong.append(f"{cell}: {100 * (ratio - 1):.1f} % worse than the record")
    if change:
        mean = float(np.exp(np.mean(np.log(change))))
        lines.append(["geometric mean", "", "", f"{mean:.4f}"])
        if mean > 1 + MEAN:
            wrong.append(f"the mean over cells is {100 * (mean - 1):.2f} % worse than the record")
    return lines, wrong


def main(config: Gate) -> int:
    """Print the table; the exit code."""
    if unknown := [cell for cell in config.cells or ("",) if cell not in CELLS]:
        print(f"error: there is no cell {unknown[0]!r}; there are {', '.join(CELLS)}", file=sys.stderr)
        return 2
    found: Found = measure_cells(config.cells, measure, workers=config.workers)
    kept = json.loads(config.file.read_text()) if config.file.is_file() else {}
    lines, wrong = compare(found, kept)
    head = ["cell", "makespan, ms", "recorded", "of it"]
    print(markdown([head, *lines]))
    print("\n".join(wrong) or "as good as the record")
    if config.record:
        kept |= found
        config.file.write_text(json.dumps({cell: kept[cell] for cell in CELLS if cell in kept}, indent=1) + "\n")
        print(f"recorded in {config.file.name}")
        return 0
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main(tyro.cli(Gate, description=__doc__)))
