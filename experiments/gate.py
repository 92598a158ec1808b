"""Are placements as good as they were? Makespans of twelve cells beside a record that is kept.

python -m experiments.gate [--record] [--cells NAME ...] [--workers 2]

Six graphs of one batch and six transformers in micro-batches are placed with a number of simulations, so that neither
the machine nor its load has a say. It fails, with exit code 1, where the mean over cells is worse than the record by
1 %, or a cell by 4 %. Who makes placements better on purpose, or changes graphs or costs, records anew and says why.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import tyro

from experiments.micro_batches import transformer
from experiments.runs import problem_of
from experiments.tables import markdown, rule
from placeto.evaluation.comparison import in_processes, start_process
from placeto.placers import load_placer
from placeto.problem.cluster_files import load_cluster
from placeto.problem.problem import PlacementProblem
from placeto.progress import ProgressBar

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


def failures(change: dict[str, float]) -> list[str]:
    """Why the gate stays shut, a sentence each, from what each cell's makespan is of the record's."""
    mean = float(np.exp(np.mean(np.log(list(change.values())))))
    said = [f"{cell}: {100 * (of - 1):.1f} % worse than the record" for cell, of in change.items() if of > 1 + CELL]
    return [
        *said,
        *([f"the mean over cells is {100 * (mean - 1):.2f} % worse than the record"] if mean > 1 + MEAN else []),
    ]


def main(config: Gate) -> int:
    """Print the table; the exit code."""
    if unknown := [cell for cell in config.cells or ("",) if cell not in CELLS]:
        print(f"error: there is no cell {unknown[0]!r}; there are {', '.join(CELLS)}", file=sys.stderr)
        return 2
    found: dict[str, tuple[str, float]] = {}
    with ProgressBar("placing", total=len(config.cells)) as bar:
        for cell, result in in_processes(
            measure, list(config.cells), config.workers or os.cpu_count() or 1, start_process
        ):
            found[cell] = result
            bar.advance(note=cell)
    kept = json.loads(config.file.read_text()) if config.file.is_file() else {}
    if config.record:
        kept |= {cell: {"problem": of, "makespan_us": us} for cell, (of, us) in found.items()}
        config.file.write_text(json.dumps({cell: kept[cell] for cell in CELLS if cell in kept}, indent=1) + "\n")
    lines, change, changed = [], {}, []
    for cell in config.cells:
        of, us = found[cell]
        if cell not in kept or kept[cell]["problem"] != of:
            changed.append(f"{cell}: the record is of another graph, cluster or costs, or has none: see --record")
            continue
        change[cell] = us / kept[cell]["makespan_us"]
        lines.append([cell, f"{us / 1e3:.3f}", f"{kept[cell]['makespan_us'] / 1e3:.3f}", f"{change[cell]:.4f}"])
    head = ["cell", "makespan, ms", "recorded", "of it"]
    print(markdown([head, rule(len(head)), *lines]))
    wrong = changed + (failures(change) if change else [])
    for line in wrong:
        print(f"worse: {line}" if line not in changed else line)
    if not wrong:
        mean = float(np.exp(np.mean(np.log(list(change.values())))))
        print(f"as good as the record: {mean:.4f} of it in the mean, {max(change.values()):.4f} at most")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main(tyro.cli(Gate, description=__doc__)))
