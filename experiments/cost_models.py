"""How far from measured training steps are the cost models?

python -m experiments.cost_models [--steps ../shared/data/costs/measured_steps.csv] [--out runs/cost_models]

Each row of a table of steps is a published step of a model on a board, in a precision. The models are built with
their published shapes, captured in that precision (mixed precision as autocast to float16), and run on one device, op
after op. Gavel's and NVIDIA's steps update parameters, which graphs leave out: for them the update is added, as ops by
the same costs (momentum, five ops a parameter; BERT's fused, one). NVIDIA's convolution nets ran with channels last in
mixed precision (configs.yml of its ConvNets), and are captured so. Nothing is fitted to a step. No op was measured on
the K80: the table takes its base clock over its boost clock, which was thought of when its steps were seen.

With ``--steps experiments/data/further_steps.csv`` the steps are others, of further boards: Lambda's
(lambdal/deeplearning-benchmark 0551cb7, pytorch/pytorch-train-throughput-{fp16,fp32}.csv; NVIDIA's training scripts of
ResNet-50, with channels first, and of BERT on SQuAD, which Apex' level O2 puts into 16 bits as a whole) and timm's
(huggingface/pytorch-image-models 5e7d47c, results/benchmark-train-amp-{nchw,nhwc}-pt112-cu113-rtx3090.csv). They say
samples a second. Lambda's steps have the batches that it says for each board (pytorch-train-bs-*.csv 08d77c4; the A10
is taken to have that of the RTX 3090, and the H100 SXM that of the PCIe board, of equal memory). Those of timm have 64
images, and their time is taken as proportional. No number of the costs comes from them, but they were looked at while
the model was chosen.
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
from experiments.panels import scatter_figure
from experiments.published_models import training_step
from experiments.tables import markdown, publish
from placeto.capture.trace import capture_training
from placeto.problem.cluster import Cluster, Device
from placeto.problem.cluster.boards import A10, A100, A100_40GB, H100, K80, P100, RTX3090, RTX4090, T4, V100
from placeto.problem.costs import EFFICIENCY, ROOFLINE, CostModel
from placeto.problem.graph import ComputationGraph, load_graph, save_graph


def _like(device: Device, kind: str, bandwidth: float, **tera: float) -> Device:
    return replace(
        device, kind=kind, flops={key: 1e12 * value for key, value in tera.items()}, memory_bandwidth=bandwidth
    )


BOARDS = {
    "K80": K80,
    "P100": P100,
    "V100 SXM2": V100,
    # datasheets: NVIDIA V100, 2017; NVIDIA A100 80 GB PCIe, 2021
    "V100 PCIe": replace(V100, flops={"float64": 7e12, "float32": 14e12, "float16": 112e12}),
    "A100 SXM": A100,
    "A100 80GB": replace(A100, memory_bandwidth=1935e9),
    # NVIDIA's datasheets: A100 80 GB PCIe, 2021; H100 PCIe, 2022; RTX A6000, 2020; RTX 6000 Ada, 2022; RTX 8000, 2018
    "V100 16 GB": V100,
    "RTX 3090": RTX3090,
    "A100 40 GB PCIe": A100_40GB,
    "A100 80 GB PCIe": replace(A100, memory_bandwidth=1935e9),
    "A100 80 GB SXM": A100,
    "RTX 4090": RTX4090,
    "H100 PCIe": _like(H100, "h100", 2000e9, float32=51.2, tf32=378, float16=756),
    "H100 SXM": H100,
    "RTX A6000": _like(A10, "rtx-a6000", 768e9, float32=38.7, tf32=77.4, float16=154.8),
    "RTX 6000 Ada": _like(RTX4090, "rtx-6000-ada", 960e9, float32=91.1, tf32=182.1, float16=364.2),
    "RTX 8000": _like(T4, "rtx-8000", 672e9, float32=16.3, float16=130.5),
    "A10": A10,
}
"""Devices, by the beginning of a board's name in the table."""
_PRECISIONS = {"fp32": "fp32", "tf32": "tf32", "amp": "fp16", "half": "half"}
_UPDATES = {"conv": 5, "conv-small": 5, "recurrent": 5, "transformer": 1}  # ops a parameter tensor, by kind of model
_UPDATING = ("Gavel", "NVIDIA DLE")
FEWEST = 5
"""Rows of a group of its own."""
GROUPS = "board", "precision", "kind", "source", "layout", "board, kind", "board, precision"
FIRST, LAST = "channels first", "channels last"
TABLE = "table (efficiency)"


@dataclass(frozen=True)
class CostModels:
    """Predict published steps."""

    steps: Path = Path("../shared/data/costs/measured_steps.csv")
    """the table of steps"""
    out: Path = Path("runs/cost_models")
    """where captured graphs and the picture go"""


class Step(NamedTuple):
    """A measured step, and its graph."""

    board: str
    precision: str
    kind: str
    model: str
    source: str
    layout: str
    measured_ms: float
    graph: ComputationGraph
    update: ComputationGraph | None


def read_steps(config: CostModels) -> list[Step]:
    """The rows of the table; models are captured the first time."""
    with config.steps.open() as file:
        rows = list(csv.DictReader(file))
    keys = [(row["model"], _PRECISIONS[row["precision"]], _layout(row) == LAST) for row in rows]
    graphs = measure_cells(keys, lambda key: captured(*key, config.out / "graphs"), "capturing")
    steps = []
    for row, key in zip(rows, keys, strict=True):
        board = next(name for name in BOARDS if row["board"].startswith(name))
        update = _update(graphs[key], _UPDATES[row["group"]]) if row["source"] in _UPDATING else None
        labels = board, row["precision"], row["group"], row["model"], row["source"], _layout(row)
        steps.append(Step(*labels, float(row["measured_ms"]), graphs[key], update))
    return steps


def _layout(row: dict[str, str]) -> str:
    """As the row says; NVIDIA's convolution nets ran with channels last in mixed precision."""
    last = row["source"] == "NVIDIA DLE" and (row["group"], row["precision"]) == ("conv", "amp")
    return row.get("layout") or (LAST if last else FIRST)


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


def main(config: CostModels) -> None:
    """Predict, print tables, draw."""
    steps = read_steps(config)
    measured = np.array([step.measured_ms for step in steps])
    roofline = predict(steps, ROOFLINE)
    predicted = {
        "dtype peaks (roofline)": roofline.sum(axis=1),
        f"constant of ops, {EFFICIENCY.constant:.2f}": over_constant(roofline, EFFICIENCY.constant),
        TABLE: predict(steps, EFFICIENCY).sum(axis=1),
    }
    ratios = {name: found / measured for name, found in predicted.items()}
    head = ["costs", "median error", "median factor", "worst factor", "Spearman"]
    costs = [[name, *summary(ratio, measured)] for name, ratio in ratios.items()]
    groups = []
    for name, mask in groups_of(steps, *GROUPS).items():
        cells = [summary(ratio[mask], measured[mask]) for ratio in ratios.values()]
        groups.append([name, str(mask.sum()), *(f"{cell[0]}, {cell[2]}" for cell in cells)])
    each = [["step", "board", "precision", "layout", "source", "measured ms", "predicted ms", "factor"]]
    for step, ms, ratio in zip(steps, predicted[TABLE], ratios[TABLE], strict=True):
        numbers = [f"{step.measured_ms:.0f}", f"{ms:.0f}", f"{ratio:.2f}"]
        each.append([step.model, step.board, step.precision, step.layout, step.source, *numbers])
    lines = [
        f"{len(steps)} steps, all of the table, from {measured.min():.0f} to {measured.max():.0f} ms.",
        markdown([head, *costs]),
        f"Median error and worst factor by group of at least {FEWEST} steps:",
        markdown([["group", "steps", *ratios], *groups]),
        "Each step, predicted by the table:",
        markdown(each, 5),
    ]
    kinds = np.array([step.kind for step in steps])
    points = {
        kind: (measured[kinds == kind], predicted[TABLE][kinds == kind]) for kind in dict.fromkeys(kinds.tolist())
    }
    title = "Published training steps on one GPU; a dot is a step"
    publish(config.out, "cost_models", lines, scatter_figure(points, "published step, ms", title))


if __name__ == "__main__":
    command(main, CostModels, "cost_models", __doc__)
