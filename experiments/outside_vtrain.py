"""Does the simulator order plans of GPTs on 2 to 8 A100 as vTrain's times do, and is its first choice the fastest?

python -m experiments.outside_vtrain [--data ../shared/data/outside/vtrain]

VIA-Research/vTrain (MICRO 2024, arXiv 2312.12391, MIT) gives 720 times of training steps of GPTs on the A100 of one
host, in Megatron-DeepSpeed: hidden size 1,024, 16 heads, 12 to 24 layers, sequences of 1,024 words, 16 bits, with
checkpoints of every layer. Files of other sizes beside this one are read, too. Each row is a grid of groups of tensor
parallelism, replicas and stages, in micro-batches. Megatron's vocabulary of 51,200 words is taken; the file doesn't say
it. All stages have equally many layers. Times of ops are those of the default cost model for the A100 with 40 GB, links
are those of the preset `8xa100-40gb`, and collectives take the times of `collective_us`. The ops of a group are those
of one rank, as torch shards Megatron's columns, rows and vocabulary; its collectives keep it busy, twice in each pass
of a layer. Nothing is fitted to these rows.

The rows are called measured, but they are composed: those that differ in replicas alone differ by an entry of vTrain's
table of all-reduces, to the last digit, and each further micro-batch takes the same time. So they say nothing about
overlap, and the times of a layer in them are the same in all plans.

A group of rows has one model, batch and number of GPUs. Its regret is the time of the plan that is simulated as the
fastest, divided by that of the fastest. One control chooses at random, and another the fastest plan without groups.
"""

from __future__ import annotations

import csv
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from scipy.stats import spearmanr
from torch.distributed.tensor.parallel import loss_parallel

from experiments.command import command
from experiments.megatron_gpt import SHARDED, Gpt
from experiments.outside_amp import by_layer, parameter_counts
from experiments.panels import scatter_figure
from experiments.pipeline_steps import FIXED_ORDER, PipelineStep, simulated
from experiments.tables import markdown, publish
from placeto.capture.trace import capture_training
from placeto.problem.cluster import Cluster, load_cluster
from placeto.problem.cluster.boards import A100
from placeto.problem.costs import EFFICIENCY
from placeto.problem.costs.collectives import collective_us
from placeto.problem.costs.group_costs import in_groups
from placeto.problem.graph import ComputationGraph
from placeto.problem.step.recomputation import recomputed

FILES, WORDS = "single_node_hidden_*.csv", 51_200
HEAD = -1
"""Place of the last norm, the head and the loss among the layers; the embedding is layer 0."""
LAUNCH_US = 155_000 / 3600
"""Microseconds in which a host launched an op: of a GPT in bf16 with activation checkpoints that was measured on an
H200, whose step took 155 ms for 3,600 ops (docs/running.md)."""
FEWEST, TRIES = 4, 3
"""Plans of a group whose regret counts, and first choices of which the best is taken, too."""


class Size(NamedTuple):
    """Of the model."""

    hidden: int
    heads: int
    length: int  # words of a sequence


class Row(NamedTuple):
    """A plan, and its time."""

    size: Size
    gpus: int
    batch: int  # sequences of a step
    micro_batch: int
    layers: int
    width: int  # GPUs of a group of tensor parallelism
    replicas: int
    stages: int
    ms: float

    @property
    def micro_batches(self) -> int:
        """M, of each replica."""
        return self.batch // self.micro_batch // self.replicas

    @property
    def group(self) -> tuple[Size, int, int, int]:
        """What a user is given: the model, GPUs, batch, layers."""
        return self.size, self.gpus, self.batch, self.layers

    @property
    def part(self) -> tuple[Size, int, int]:
        """What decides the times of a layer."""
        return self.size, self.micro_batch, self.width


def read_rows(folder: Path) -> list[Row]:
    """All rows."""
    found = []
    for path in sorted(path for path in folder.iterdir() if path.match(FILES)):
        with path.open() as file:
            lines = list(csv.reader(file))[1:]
        for line in lines:
            gpus, batch, micro_batch, hidden, heads, layers, length, width, replicas, stages = map(int, line[:10])
            plan = gpus, batch, micro_batch, layers, width, replicas, stages
            found.append(Row(Size(hidden, heads, length), *plan, float(line[10])))
    return found


class Layers(NamedTuple):
    """The embedding, a layer of the model, and its end, in one micro-batch on a group."""

    time_us: np.ndarray  # (3, 3) forward, backward with what is computed again, update
    collective_us: np.ndarray  # (3, 3) what the collectives of the group take of it
    parameters: np.ndarray  # (3,) of one GPU
    launched: np.ndarray  # (3, 3) ops of each pass


@cache
def graph_of(size: Size, micro_batch: int, width: int) -> ComputationGraph:
    """The captured step of one GPU of a group, with one layer of the model."""
    with torch.device("meta"):
        module = Gpt(1, size.hidden, size.heads, WORDS, size.length).half()
        words = torch.zeros(micro_batch, size.length, dtype=torch.long)

    def loss(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(logits.float(), targets)

    how: dict[str, Any] = {"optimizer_step": True, "master_weights": True, "width": width, "parallel": SHARDED}
    with loss_parallel():
        whole = capture_training(module, (words,), loss, targets=(words.flatten(),), name="gpt", **how)
    return recomputed(whole, ("layers.0",))


def layers_of(size: Size, micro_batch: int, width: int, cluster: Cluster) -> Layers:
    """What the model is made of, from a captured step with one layer."""

    def place(module: str) -> int:
        return {"layers": 1, "norm": 2, "head": 2, "loss": 2}.get(module.split(".")[0], 0)

    return priced(graph_of(size, micro_batch, width), place, width, cluster)


def priced(graph: ComputationGraph, place: Callable[[str], int], width: int, cluster: Cluster) -> Layers:
    """Layers of a captured step of one GPU of a group; `place` says of a module to which of the three it belongs."""
    groups, costs = in_groups(cluster, EFFICIENCY, width)
    time_us = costs.op_time_us(graph, groups)[:, 0]
    time_us += np.where(time_us > 0, groups.overhead_us[0], 0.0)
    sums = partial(by_layer, graph, place, 3)
    sent = np.array(["c10d" in kind for kind in graph.op_types])
    return Layers(sums(time_us), sums(time_us * sent), parameter_counts(graph, place, 3), sums(time_us > 0))


def step_of(row: Row, layers: Layers, cluster: Cluster) -> PipelineStep:
    """A row as a pipeline; a group of GPUs is a device."""
    places, embedding = np.array([0, *[1] * row.layers, 2]), WORDS * row.size.hidden // row.width
    devices, count = row.stages * row.replicas, len(places)
    ends = [0, *(1 + row.layers * stage // row.stages for stage in range(1, row.stages)), count]
    parameters, time_us = layers.parameters[places], layers.time_us[places]
    if row.stages == 1:  # the head's weights are the embedding's own
        kept = 1 - embedding / parameters[HEAD]
        parameters[HEAD] = round(kept * parameters[HEAD])
        time_us[HEAD, 2] *= kept
    bandwidth, latency_us = float(cluster.bandwidth[0, 1]), float(cluster.latency_us[0, 1])
    return PipelineStep(
        stages=[list(range(*pair)) for pair in pairwise(ends)],
        devices=np.arange(devices).reshape(row.stages, row.replicas).tolist(),
        micro_batches=row.micro_batches,
        time_us=np.repeat(time_us[:, None], devices, axis=1),
        boundary_bytes=2 * row.micro_batch * row.size.length * row.size.hidden,
        parameter_bytes=2 * parameters,
        saved_bytes=np.zeros((count, devices), np.int64),
        resident_bytes=np.zeros(devices, np.int64),
        receive_us=np.zeros(devices),
        waits=True,
        tied_bytes=2 * embedding,
        sum_us=lambda size, ranks: collective_us("all_reduce", size, ranks, bandwidth, latency_us),
    )


def without_overhead(cluster: Cluster) -> Cluster:
    """The cluster for layers as ops, whose times have the overheads of the ops in them."""
    return replace(cluster, devices=tuple(replace(device, overhead_us=0.0) for device in cluster.devices))


def simulate_all(rows: Sequence[Row], cluster: Cluster, launch_us: float = 0.0) -> np.ndarray:
    """(K,) milliseconds of the steps.

    Args:
        rows: the plans.
        cluster: the boards and links.
        launch_us: of an op; passes take as long as the host needs to launch their ops, at least.
    """
    parts = {}
    for part in sorted({row.part for row in rows}):
        layers = layers_of(*part, cluster)
        least = launch_us * layers.launched * [1, 1, 0]  # one op updates many parameters
        parts[part] = layers._replace(time_us=np.maximum(layers.time_us, least))
    whole = without_overhead(cluster)
    return np.array([simulated(step_of(row, parts[row.part], cluster), whole).makespan_us / 1e3 for row in rows])


def ratio_errors(rows: Sequence[Row], ms: np.ndarray) -> np.ndarray:
    """Errors of times after one factor for each group with at least three rows: its geometric mean."""
    logs = np.log(ms / [row.ms for row in rows])
    return np.concatenate([np.exp(logs[own] - logs[own].mean()) - 1 for own in by_group(rows) if len(own) >= 3])


def by_group(rows: Iterable[Row]) -> list[list[int]]:
    """Numbers of the rows of each group."""
    groups = defaultdict[tuple[Size, int, int, int], list[int]](list)
    for number, row in enumerate(rows):
        groups[row.group].append(number)
    return list(groups.values())


class Regret(NamedTuple):
    """Of the first choice, and of the best of the first three: the time over that of the fastest plan."""

    mean: float  # geometric
    worst: float
    of_three: float  # geometric mean
    groups: int

    @property
    def cells(self) -> list[str]:
        """Of a table."""
        return [f"{self.mean:.3f}", f"{self.worst:.3f}", f"{self.of_three:.3f}", f"{self.groups}"]


def regret(rows: Sequence[Row], ms: np.ndarray | None) -> Regret:
    """Over groups with at least four plans; None = of a choice at random, with its expected logarithm."""
    firsts, threes, worst = [], [], []
    for own in (group for group in by_group(rows) if len(group) >= FEWEST):
        times = np.array([rows[number].ms for number in own])
        logs = np.log(times / times.min())
        if ms is None:
            logs = np.sort(logs)
            ways = [math.comb(len(own) - 1 - place, TRIES - 1) for place in range(len(own))]
            firsts.append(logs.mean())
            threes.append(float(np.average(logs, weights=ways)))
            worst.append(logs[-1])
        else:
            logs = logs[np.argsort(ms[own], kind="stable")]
            firsts.append(logs[0])
            threes.append(logs[:TRIES].min())
            worst.append(logs[0])
    return Regret(math.exp(np.mean(firsts)), math.exp(max(worst)), math.exp(np.mean(threes)), len(firsts))


def with_factors(rows: Sequence[Row], ms: np.ndarray) -> np.ndarray:
    """(K,) times whose geometric mean is right for each part of the model: what is left is due to the plans."""
    logs, parts = np.log(ms / [row.ms for row in rows]), defaultdict[tuple[Size, int, int], list[int]](list)
    for number, row in enumerate(rows):
        parts[row.part].append(number)
    for own in parts.values():
        logs[own] = logs[own].mean()
    return ms / np.exp(logs)


def errors_by_kind(rows: Sequence[Row], ms: np.ndarray) -> list[list[str]]:
    """A table with all rows, and with those of each width, number of stages and so on."""
    measured = np.array([row.ms for row in rows])
    kinds: dict[str, Callable[[Row], int]] = {
        "hidden size": lambda row: row.size.hidden,
        "width": lambda row: row.width,
        "stages": lambda row: row.stages,
        "replicas": lambda row: row.replicas,
        "sequences of a micro-batch": lambda row: row.micro_batch,
        "layers": lambda row: row.layers,
    }
    parts = {"all": np.full(len(rows), True)}
    for name, value_of in kinds.items():
        values = np.array([value_of(row) for row in rows])
        parts |= {f"{name}: {value}": values == value for value in sorted(set(values.tolist()))}
    table = [["", "rows", "median error", "largest", "median simulated / given", "Spearman"]]
    for name, part in parts.items():
        ratio = ms[part] / measured[part]
        error, rank = np.abs(ratio - 1), spearmanr(ms[part], measured[part]).statistic
        cells = [f"{100 * np.median(error):.1f} %", f"{100 * error.max():.0f} %", f"{np.median(ratio):.2f}"]
        table.append([name, f"{len(ratio)}", *cells, f"{rank:.3f}"])
    return table


def layer_table(rows: Sequence[Row], cluster: Cluster) -> list[list[str]]:
    """Times of a layer in both passes, as plans of one stage that differ in layers alone give them, and simulated."""
    plans, given = defaultdict[Row, list[Row]](list), defaultdict[tuple[Size, int, int], list[float]](list)
    for row in sorted(rows, key=lambda row: row.layers):
        if row.stages == 1:
            plans[row._replace(layers=0, ms=0.0)].append(row)
    for plan, (few, *_, many) in plans.items():
        given[plan.part].append((many.ms - few.ms) * 1e3 / (many.layers - few.layers) / plan.micro_batches)
    head = ["width", "given us", "simulated us", "collectives", "divided by the width", "ops", "their launch us"]
    table = [["sequences of a micro-batch", *head]]
    for part in sorted(given):
        layers, alone = layers_of(*part, cluster), layers_of(*part[:2], 1, cluster)
        us = (each[1, :2].sum() for each in (layers.time_us, layers.collective_us, alone.time_us / part[2]))
        ops = layers.launched[1, :2].sum()
        cells = np.median(given[part]), *us, ops, LAUNCH_US * ops
        table.append([f"{part[1]}", f"{part[2]}", *(f"{cell:.0f}" for cell in cells)])
    return table


def errors_of_ways(rows: Sequence[Row], ways: dict[str, np.ndarray], title: str) -> list[list[str]]:
    """A table with each way to simulate these plans, and the controls."""
    given = np.array([row.ms for row in rows])
    table = [[title, "median error", "ratios", "regret", "worst", "best of three", "groups"]]
    for name, ms in ways.items():
        errors, choice = (ms / given - 1, ratio_errors(rows, ms)), regret(rows, ms)
        cells = [f"{100 * np.median(np.abs(error)):.1f} %" for error in errors]
        table.append([name, *cells, *choice.cells])
    without = regret(rows, np.where([row.width == 1 for row in rows], given, math.inf))
    table.append(["the fastest plan without groups", "-", "-", *without.cells])
    table.append(["choice at random", "-", "-", *regret(rows, None).cells])
    return table


def picture(rows: Sequence[Row], ms: np.ndarray) -> Figure:
    """Simulated against given milliseconds, by the width of groups."""
    given, widths = np.array([row.ms for row in rows]), np.array([row.width for row in rows])
    points = {f"width {width}": (given[widths == width], ms[widths == width]) for width in sorted(set(widths.tolist()))}
    return scatter_figure(points, "step by vTrain, ms", "Plans of GPTs on 2 to 8 A100, by the width of groups")


@dataclass(frozen=True)
class OutsideVtrain:
    """Read, simulate, compare."""

    data: Path = Path("../shared/data/outside/vtrain")
    """folder of single_node_hidden_1024.csv"""
    out: Path = Path("runs/outside_vtrain")
    """folder for the picture"""


def main(config: OutsideVtrain) -> None:
    """The tables."""
    rows = read_rows(config.data)
    cluster = load_cluster("8xa100-40gb")
    boards = tuple(replace(board, memory_bandwidth=A100.memory_bandwidth) for board in cluster.devices)
    faster, launching = replace(cluster, devices=boards), f"a host that launches an op in {LAUNCH_US:.0f} us"
    ways = {
        "Placeto": (ms := simulate_all(rows, cluster)),
        "with the memory bandwidth of the A100 with 80 GB": simulate_all(rows, faster),
        launching: simulate_all(rows, cluster, launch_us=LAUNCH_US),
        "both": simulate_all(rows, faster, launch_us=LAUNCH_US),
        "one factor for each size of micro-batches and width": with_factors(rows, ms),
    }
    lines = [markdown(errors_by_kind(rows, ms)), markdown(layer_table(rows, cluster))]
    alone = np.array([row.width == 1 for row in rows])
    for part, title in (np.full(len(rows), True), "all plans"), (alone, "plans without groups"):
        own = [row for row, kept in zip(rows, part, strict=True) if kept]
        lines.append(markdown(errors_of_ways(own, {name: found[part] for name, found in ways.items()}, title)))
    lines.append(
        "ratios: median error after one factor for each group with at least three plans; regret: of the first choice, "
        f"geometric mean over groups with at least {FEWEST} plans."
    )
    publish(config.out, "outside_vtrain", lines, picture(rows, ms))


if __name__ == "__main__":
    command(main, OutsideVtrain, "outside_vtrain", __doc__, FIXED_ORDER)
