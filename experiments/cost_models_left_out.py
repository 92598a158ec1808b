"""How far from measured training steps is the table of efficiencies where a board's or a model's ops are left out?

python -m experiments.cost_models_left_out [--data ../shared/data/costs] [--out runs/cost_models]

The table is fitted again without the ops that were measured on a board, and then stands for a board of which nothing
was measured: its steps are predicted by what other boards' ops say. Likewise without the ops that were measured in
training a model (PipeDream's layers, NeuSight's labels). No step is looked at by any fit. The K80 has no ops.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from experiments.command import command
from experiments.cost_models import BOARDS, GROUPS, CostModels, Step, groups_of, predict, read_steps, summary
from experiments.fit_efficiency import Op, read_ops, table
from experiments.tables import markdown
from placeto.problem.costs.efficiency import Efficiency, load_efficiency


@dataclass(frozen=True)
class LeftOut:
    """Leave out ops."""

    data: Path = Path("../shared/data/costs")
    """folder with measured_steps.csv and op_times.csv.gz"""
    out: Path = Path("runs/cost_models")
    """where captured graphs go"""


def fitted(ops: Sequence[Op]) -> Efficiency:
    """The cost model of a table that is fitted to these ops."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "table.json"
        path.write_text(json.dumps(table(ops, errors=False)))
        return load_efficiency(path)


def is_of_model(op: Op, model: str) -> bool:
    """Whether an op was measured in a model, such as "resnet50_b128": sources write names and sizes otherwise.

    >>> op = Op("NeuSight-labels", "v100", "*", "softmax", 0.0, 1.0, 0.0, 1.0, "bert_large-train-512-2")
    >>> is_of_model(op, "bert_large_T512_b8"), is_of_model(op, "squad_large_b8")
    (True, False)
    """
    return op.model.partition("-")[0] == re.sub(r"(_32x4d)?(_T\d+)?_b\d+$", "", model)


def main(config: LeftOut) -> None:
    """Fit without, predict, print."""
    if not (config.data / "op_times.csv.gz").exists():
        print(f"skipped: there is no {config.data / 'op_times.csv.gz'}")
        return
    steps, ops = read_steps(CostModels(config.data, config.out)), read_ops(config.data)
    measured = np.array([step.measured_ms for step in steps])
    everything = predict(steps, fitted(ops)).sum(axis=1) / measured
    boards, models = np.full((2, len(steps)), np.nan)
    for kind in dict.fromkeys(board.kind for board in BOARDS.values()):
        mask = np.array([BOARDS[step.board].kind == kind for step in steps])
        kept = [op for op in ops if op.device != kind]
        if len(kept) < len(ops):
            boards[mask] = _ratios(steps, mask, fitted(kept))
    for model in dict.fromkeys(step.model for step in steps):
        mask = np.array([step.model == model for step in steps])
        kept = [op for op in ops if not is_of_model(op, model)]
        if len(kept) < len(ops):
            models[mask] = _ratios(steps, mask, fitted(kept))
    print("Median error, median factor, worst factor either way and Spearman's rank correlation of predicted steps.\n")
    for what, found in (("board", boards), ("model", models)):
        mask = np.isfinite(found)
        print(f"Without the ops of the step's {what}, for the {mask.sum()} steps that have some:\n")
        head = ["steps", "number", "with all ops", "", "", "", "left out", "", "", ""]
        known = [step for step, there in zip(steps, mask, strict=True) if there]
        rows = [
            _row(label, group, everything[mask], found[mask], measured[mask])
            for label, group in groups_of(known, *GROUPS[:4]).items()
        ]
        print(markdown([head, *rows]), end="\n\n")


def _ratios(steps: Sequence[Step], mask: np.ndarray, costs: Efficiency) -> np.ndarray:
    some = [step for step, wanted in zip(steps, mask, strict=True) if wanted]
    return np.asarray(predict(some, costs).sum(axis=1) / [step.measured_ms for step in some])


def _row(label: str, mask: np.ndarray, first: np.ndarray, second: np.ndarray, measured: np.ndarray) -> list[str]:
    found = (summary(ratios[mask], measured[mask]) for ratios in (first, second))
    return [label, str(mask.sum()), *(cell for cells in found for cell in cells)]


if __name__ == "__main__":
    command(main, LeftOut, "cost_models_left_out", __doc__)
