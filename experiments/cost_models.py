"""How far from measured training steps are the cost models?

python -m experiments.cost_models [--data ../shared/data/costs] [--out runs/cost_models]

Each row of measured_steps.csv is a published step of a model on a board, in a precision. The models are built with
their published shapes, captured in that precision (mixed precision as autocast to float16), and run on one device, op
after op. Gavel's and NVIDIA's steps update parameters, which graphs leave out: for them the update is added, as ops by
the same costs (momentum, five ops a parameter; BERT's fused, one). NVIDIA's convolution nets ran with channels last in
mixed precision (configs.yml of its ConvNets), and are captured so. Nothing is fitted to a step but the constant of
"best constant", which is: leaving out a source, a board, or a kind of model shows how much that is worth. No op was
measured on the K80: the table takes its base clock over its boost clock, which was thought of when its steps were seen.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from scipy.stats import spearmanr

from experiments.command import command
from experiments.harness import measure_cells
from experiments.published_models import training_step
from experiments.tables import markdown
from placeto.capture.trace import capture_training
from placeto.problem.cluster import Cluster, Device
from placeto.problem.cluster.boards import A100, K80, P100, V100
from placeto.problem.costs import EFFICIENCY, ROOFLINE, CostModel
from placeto.problem.graph import ComputationGraph, load_graph, save_graph

BOARDS = {
    "K80": K80,
    "P100": P100,
    "V100 SXM2": V100,
    # datasheets: NVIDIA V100, 2017; NVIDIA A100 80 GB PCIe, 2021
    "V100 PCIe": replace(V100, flops={"float64": 7e12, "float32": 14e12, "float16": 112e12}),
    "A100 SXM": A100,
    "A100 80GB": replace(A100, memory_bandwidth=1935e9),
}
"""Devices, by the beginning of a board's name in the table."""
_PRECISIONS = {"fp32": "fp32", "tf32": "tf32", "amp": "fp16"}
_UPDATES = {"conv": 5, "conv-small": 5, "recurrent": 5, "transformer": 1}  # ops a parameter tensor, by kind of model
_UPDATING = ("Gavel", "NVIDIA DLE")
FEWEST = 5
"""Rows of a group of its own."""
GROUPS = "board", "precision", "kind", "source", "board, kind", "board, precision"


@dataclass(frozen=True)
class CostModels:
    """Predict published steps."""

    data: Path = Path("../shared/data/costs")
    """folder with measured_steps.csv"""
    out: Path = Path("runs/cost_models")
    """where captured graphs and the picture go"""


class Step(NamedTuple):
    """A measured step, and its graph."""

    board: str
    precision: str
    kind: str
    model: str
    source: str
    measured_ms: float
    old_preset_ms: float  # by the presets when peaks had no dtype
    graph: ComputationGraph
    update: ComputationGraph | None


def read_steps(config: CostModels) -> list[Step]:
    """The rows of the table; models are captured the first time."""
    with (config.data / "measured_steps.csv").open() as file:
        rows = list(csv.DictReader(file))
    last = [row["source"] == "NVIDIA DLE" and (row["group"], row["precision"]) == ("conv", "amp") for row in rows]
    keys = [(row["model"], _PRECISIONS[row["precision"]], layout) for row, layout in zip(rows, last, strict=True)]
    graphs = measure_cells(dict.fromkeys(keys), lambda key: captured(*key, config.out / "graphs"), "capturing")
    steps = []
    for row, key in zip(rows, keys, strict=True):
        board = next(name for name in BOARDS if row["board"].startswith(name))
        update = _update(graphs[key], _UPDATES[row["group"]]) if row["source"] in _UPDATING else None
        measured, old = float(row["measured_ms"]), float(row["placeto_preset_ms"])
        labels = board, row["precision"], row["group"], row["model"], row["source"]
        steps.append(Step(*labels, measured, old, graphs[key], update))
    return steps


def captured(model: str, precision: str, channels_last: bool, folder: Path) -> ComputationGraph:
    """The graph of a training step, with images and weights in that layout; captured the first time.

    In precision "half" all of the module is in 16 bits, as Apex' level O2 has it.
    """
    path = folder / f"{model}-{precision}{'-channels_last' if channels_last else ''}.json.gz"
    if not path.exists():
        step = training_step(model)
        module, inputs, loss = step.module, step.inputs, step.loss
        if precision == "half":
            module, loss = module.half(), lambda output, *targets: step.loss(output.float(), *targets)
        if channels_last:
            module = module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
            inputs = tuple(x.to(memory_format=torch.channels_last) for x in inputs)
        precision = "fp32" if precision == "half" else precision
        graph = capture_training(module, inputs, loss, targets=step.targets, name=model, precision=precision)
        folder.mkdir(parents=True, exist_ok=True)
        save_graph(graph, path)
    return load_graph(path)


def _update(graph: ComputationGraph, ops: int) -> ComputationGraph:
    """The optimizer's ops: each reads two tensors of a parameter's size and writes one; a fused one all at once."""
    sizes = [int(size) for size in graph.trained_bytes if size]
    passes = 3 if ops > 1 else 7  # fused: parameter, gradient and two moments in, all but the gradient out
    records = [
        {"name": f"{number}.{tensor}", "type": "aten.add", "bytes_accessed": float(passes * size)}
        for tensor, size in enumerate(sizes)
        for number in range(ops)
    ]
    return ComputationGraph.from_ops("update", records)


def predict(steps: Sequence[Step], costs: CostModel) -> np.ndarray:
    """(S, 2) milliseconds of steps on their boards, op after op: the ops, and the overheads behind them."""
    graphs = [(step.graph,) if step.update is None else (step.graph, step.update) for step in steps]
    return np.array([alone_ms(BOARDS[step.board], costs, *of) for step, of in zip(steps, graphs, strict=True)])


def alone_ms(device: Device, costs: CostModel, *graphs: ComputationGraph) -> tuple[float, float]:
    """Milliseconds of graphs on a device, op after op: the ops, and the overheads behind them."""
    alone = Cluster("alone", (device,), np.ones((1, 1)), np.zeros((1, 1)))
    time = np.concatenate([costs.op_time_us(graph, alone)[:, 0] for graph in graphs])
    return float(time.sum()) / 1e3, device.overhead_us * np.count_nonzero(time) / 1e3


def best_constant(roofline: np.ndarray, measured: np.ndarray) -> float:
    """The constant with the least median error, given the predictions of plain roofline (S, 2)."""
    values = np.arange(0.3, 1.0, 0.01)
    errors = [np.median(np.abs(over_constant(roofline, value) / measured - 1)) for value in values]
    return float(values[int(np.argmin(errors))])


def over_constant(roofline: np.ndarray, constant: float) -> np.ndarray:
    """(S,) milliseconds if ops take roofline over a constant."""
    return np.asarray(roofline[:, 0] / constant + roofline[:, 1])


def summary(ratios: np.ndarray, measured: np.ndarray) -> list[str]:
    """Median error, median factor, worst factor either way and Spearman's rank correlation of predictions."""
    worst = float(np.exp(np.abs(np.log(ratios)).max()))
    ranks = f"{spearmanr(ratios * measured, measured).statistic:.3f}" if len(ratios) > 2 else ""
    return [f"{np.median(np.abs(ratios - 1)):.1%}", f"{np.median(ratios):.2f}", f"{worst:.2f}", ranks]


def groups_of(steps: Sequence[NamedTuple], *names: str, least: int = FEWEST) -> dict[str, np.ndarray]:
    """Which steps are in which group of at least so many: all of them, then those of one label.

    A label is what a step's fields have, one field or several with commas between them.
    """
    found: dict[str, np.ndarray] = {}
    for name in ("", *names):
        fields = name.split(", ") if name else []
        labels = np.array([", ".join(getattr(step, field) for field in fields) or "all" for step in steps])
        for label in dict.fromkeys(labels.tolist()):
            if (labels == label).sum() >= least:
                found.setdefault(label, labels == label)
    return found


def left_out(steps: Sequence[Step], roofline: np.ndarray, measured: np.ndarray) -> list[list[str]]:
    """Errors of the best constant of the other steps on those of a source, board or kind that are left out."""
    rows = []
    for what in ("source", "board", "kind", "model"):
        errors, values = [], []
        labels = np.array([getattr(step, what) for step in steps])
        if len(set(labels)) == 1:
            continue
        for label in dict.fromkeys(labels.tolist()):
            out = labels == label
            values.append(best_constant(roofline[~out], measured[~out]))
            errors += np.abs(over_constant(roofline[out], values[-1]) / measured[out] - 1).tolist()
        rows.append([f"a {what}", f"{min(values):.2f} to {max(values):.2f}", f"{np.median(errors):.1%}"])
    return rows


def main(config: CostModels) -> None:
    """Predict, print tables, draw."""
    if not (config.data / "measured_steps.csv").exists():
        print(f"skipped: there is no {config.data / 'measured_steps.csv'}")
        return
    steps = read_steps(config)
    measured = np.array([step.measured_ms for step in steps])
    roofline = predict(steps, ROOFLINE)
    best = best_constant(roofline, measured)
    predicted = {
        "presets as they were": np.array([step.old_preset_ms for step in steps]),
        "dtype peaks (roofline)": roofline.sum(axis=1),
        f"best constant, {best:.2f}": over_constant(roofline, best),
        f"constant of ops, {EFFICIENCY.constant:.2f}": over_constant(roofline, EFFICIENCY.constant),
        "table (efficiency)": predict(steps, EFFICIENCY).sum(axis=1),
    }
    ratios = {name: found / measured for name, found in predicted.items()}
    head = ["costs", "median error", "median factor", "worst factor", "Spearman"]
    rows = [[name, *summary(ratio, measured)] for name, ratio in ratios.items()]
    print(f"{len(steps)} steps, all of the table, from {measured.min():.0f} to {measured.max():.0f} ms.\n")
    print(markdown([head, *rows]))
    print(f"\nMedian error and worst factor by group of at least {FEWEST} steps:\n")
    head = ["group", "steps", *ratios]
    rows = []
    for name, mask in groups_of(steps, *GROUPS).items():
        cells = [summary(ratio[mask], measured[mask]) for ratio in ratios.values()]
        rows.append([name, str(mask.sum()), *(f"{cell[0]}, {cell[2]}" for cell in cells)])
    print(markdown([head, *rows]))
    print("\nA constant fitted to the other steps, where some are left out:\n")
    head = ["left out", "constants", "median error"]
    print(markdown([head, *left_out(steps, roofline, measured)]))
    print("\nEach step, predicted by the table:\n")
    head = ["step", "board", "precision", "source", "measured ms", "predicted ms", "factor"]
    table = ratios["table (efficiency)"]
    rows = [
        [step.model, step.board, step.precision, step.source, f"{ms:.0f}", f"{ms * factor:.0f}", f"{factor:.2f}"]
        for step, ms, factor in zip(steps, measured, table, strict=True)
    ]
    print(markdown([head, *rows], 4))
    _draw(steps, {name: ratios[name] for name in ("presets as they were", "table (efficiency)")}, config.out)


def _draw(steps: Sequence[Step], ratios: dict[str, np.ndarray], folder: Path) -> None:
    """Predicted against measured, a panel for each cost model."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4.6), layout="constrained")
    panels = figure.subplots(1, len(ratios), sharey=True)
    measured = np.array([step.measured_ms for step in steps])
    for panel, (name, ratio) in zip(panels, ratios.items(), strict=True):
        ends = np.array([measured.min() / 2, measured.max() * 2])
        panel.fill_between(ends, ends / 2, ends * 2, color="0.92", linewidth=0, label="within a factor of 2")
        panel.plot(ends, ends, color="0.6", linewidth=1, label="predicted = measured")
        for kind in dict.fromkeys(step.kind for step in steps):
            mask = np.array([step.kind == kind for step in steps])
            panel.scatter(measured[mask], (ratio * measured)[mask], s=18, label=kind)
        panel.set(xscale="log", yscale="log", xlabel="measured step (ms)", title=name)
    panels[0].set_ylabel("predicted step (ms)")
    panels[0].legend(frameon=False)
    figure.suptitle("Published training steps on one GPU, by cost model; a dot is a step", x=0.01, ha="left")
    folder.mkdir(parents=True, exist_ok=True)
    figure.savefig(folder / "cost_models.png", dpi=120)
    print(f"\nPicture: {folder / 'cost_models.png'}; shaded: within a factor of 2.")


if __name__ == "__main__":
    command(main, CostModels, "cost_models", __doc__)
