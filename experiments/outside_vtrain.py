"""Does the simulator order plans of GPTs on 2 to 8 A100 as vTrain's times do, and is its first choice the fastest?

python -m experiments.outside_vtrain [--data ../shared/data/outside/vtrain]

VIA-Research/vTrain (MICRO 2024, arXiv 2312.12391, MIT) gives 720 times of training steps of GPTs on the A100 of one
host, in Megatron-DeepSpeed: hidden size 1,024, 16 heads, 12 to 24 layers, sequences of 1,024 words, 16 bits, with
checkpoints of every layer. Each row is a grid of groups of tensor parallelism, replicas and stages, in micro-batches.
Megatron's vocabulary of 51,200 words is taken; the file doesn't say it. Layers have equal numbers in all stages. Times
of ops are those of the default cost model for the A100 with 40 GB, links are those of the preset `8xa100-40gb`, and
sums of gradients are those of `collective_us`. Nothing is fitted to these rows.

A group of rows has one model, batch and number of GPUs. Its regret is the time of the plan that is simulated as the
fastest, divided by that of the fastest. A control chooses at random.
"""

from __future__ import annotations

import csv
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy.stats import spearmanr

from experiments import outside_amp
from experiments.command import command
from experiments.outside_amp import LENGTH, WIDTH, layer_times, parameter_counts
from experiments.pipeline_steps import FIXED_ORDER, PipelineStep, simulated
from experiments.tables import markdown
from placeto.problem.cluster import Cluster, load_cluster
from placeto.problem.costs.collectives import collective_us
from placeto.problem.step.recomputation import recomputed

WORDS = 51_200
WIDTHS = (1,)
"""Devices of a group of tensor parallelism that are simulated."""
HEAD = -1
"""Place of the last norm, the head and the loss among the layers; the embedding is layer 0."""
FEWEST, TRIES = 4, 3
"""Plans of a group whose regret counts, and first choices of which the best is taken, too."""


class Row(NamedTuple):
    """A plan, and its time."""

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
    def group(self) -> tuple[int, int, int]:
        """What a user is given: GPUs, batch, layers."""
        return self.gpus, self.batch, self.layers


def read_rows(folder: Path) -> list[Row]:
    """All rows."""
    with (folder / "single_node_hidden_1024.csv").open() as file:
        lines = list(csv.reader(file))[1:]
    found = []
    for line in lines:
        gpus, batch, micro_batch, _, _, layers, _, width, replicas, stages = map(int, line[:10])
        found.append(Row(gpus, batch, micro_batch, layers, width, replicas, stages, float(line[10])))
    return found


class Layers(NamedTuple):
    """The embedding, a layer of the model, and its end, in one micro-batch on a group."""

    time_us: np.ndarray  # (3, 3) forward, backward with what is computed again, update
    parameters: np.ndarray  # (3,) of one GPU


def layers_of(micro_batch: int, cluster: Cluster, width: int = 1) -> Layers:
    """What the model is made of, from a captured step with one layer.

    Raises:
        NotImplementedError: the width is not 1.
    """
    if width != 1:
        raise NotImplementedError(f"groups of {width} GPUs aren't captured")
    graph = recomputed(outside_amp.captured(micro_batch, WORDS), ("layers.0",))

    def place(module: str) -> int:
        return {"layers": 1, "norm": 2, "head": 2, "loss": 2}.get(module.split(".")[0], 0)

    return Layers(layer_times(graph, place, 3, cluster), parameter_counts(graph, place, 3))


def step_of(row: Row, layers: Layers, cluster: Cluster) -> PipelineStep:
    """A row as a pipeline; a group of GPUs is a device."""
    places = np.array([0, *[1] * row.layers, 2])
    devices, count = row.stages * row.replicas, len(places)
    ends = [0, *(1 + row.layers * stage // row.stages for stage in range(1, row.stages)), count]
    parameters = layers.parameters[places]
    if row.stages == 1:
        parameters[HEAD] -= WORDS * WIDTH // row.width  # the embedding's own weights
    bandwidth, latency_us = float(cluster.bandwidth[0, 1]), float(cluster.latency_us[0, 1])
    return PipelineStep(
        stages=[list(range(*pair)) for pair in pairwise(ends)],
        devices=np.arange(devices).reshape(row.stages, row.replicas).tolist(),
        micro_batches=row.micro_batches,
        time_us=np.repeat(layers.time_us[places][:, None], devices, axis=1),
        boundary_bytes=2 * row.micro_batch * LENGTH * WIDTH,
        parameter_bytes=2 * parameters,
        saved_bytes=np.zeros((count, devices), np.int64),
        resident_bytes=np.zeros(devices, np.int64),
        receive_us=np.zeros(devices),
        tied_bytes=2 * WORDS * WIDTH // row.width,
        sum_us=lambda size, ranks: collective_us("all_reduce", size, ranks, bandwidth, latency_us),
    )


def simulate_all(rows: Sequence[Row]) -> np.ndarray:
    """(K,) milliseconds of the steps."""
    cluster = load_cluster("8xa100-40gb")
    parts = {key: layers_of(key[0], cluster, key[1]) for key in sorted({(row.micro_batch, row.width) for row in rows})}
    found = []
    for row in rows:
        part = cluster.only(range(row.gpus // row.width)) if False else cluster
        found.append(simulated(step_of(row, parts[row.micro_batch, row.width], part), part).makespan_us / 1e3)
    return np.array(found)


def ratio_errors(rows: Sequence[Row], ms: np.ndarray) -> np.ndarray:
    """Errors of times after one factor for each group with at least three rows: its geometric mean."""
    groups, measured = by_group(rows), np.array([row.ms for row in rows])
    logs = np.log(ms / measured)
    return np.concatenate([np.exp(logs[own] - logs[own].mean()) - 1 for own in groups if len(own) >= 3])


def by_group(rows: Iterable[Row]) -> list[list[int]]:
    """Numbers of the rows of each group."""
    groups = defaultdict[tuple[int, int, int], list[int]](list)
    for number, row in enumerate(rows):
        groups[row.group].append(number)
    return list(groups.values())


class Regret(NamedTuple):
    """Of the first choice, and of the best of the first three: the time over that of the fastest plan."""

    mean: float  # geometric
    worst: float
    of_three: float  # geometric mean
    groups: int


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


@dataclass(frozen=True)
class OutsideVtrain:
    """Read, simulate, compare."""

    data: Path = Path("../shared/data/outside/vtrain")
    """folder of single_node_hidden_1024.csv"""


def main(config: OutsideVtrain) -> None:
    """The tables."""
    if not (config.data / "single_node_hidden_1024.csv").exists():
        print(f"skipped: there is no {config.data / 'single_node_hidden_1024.csv'}")
        return
    every = read_rows(config.data)
    rows = [row for row in every if row.width in WIDTHS]
    measured, ms = np.array([row.ms for row in rows]), simulate_all(rows)
    kinds: dict[str, Callable[[Row], int]] = {
        "width": lambda row: row.width,
        "stages": lambda row: row.stages,
        "replicas": lambda row: row.replicas,
        "sequences of a micro-batch": lambda row: row.micro_batch,
        "layers": lambda row: row.layers,
    }
    parts = {"all": np.full(len(rows), True)}
    for name, of in kinds.items():
        values = np.array([of(row) for row in rows])
        parts |= {f"{name}: {value}": values == value for value in sorted(set(values.tolist()))}
    table = [["", "rows", "median error", "largest", "median simulated / measured", "Spearman"]]
    for name, own in parts.items():
        ratio = ms[own] / measured[own]
        error, rank = np.abs(ratio - 1), spearmanr(ms[own], measured[own]).statistic
        cells = [f"{100 * np.median(error):.1f} %", f"{100 * error.max():.0f} %", f"{np.median(ratio):.2f}"]
        table.append([name, f"{len(ratio)}", *cells, f"{rank:.3f}"])
    print(f"{markdown(table)}\n")
    errors = np.abs(ratio_errors(rows, ms))
    print(f"Ratios within a group, after one factor for each of those with at least three rows: median error of the")
    print(f"{len(errors)} rows {100 * np.median(errors):.1f} %, largest {100 * errors.max():.0f} %.\n")
    table = [["choice", "groups", "regret, geometric mean", "worst", "best of three"]]
    for name, found in {"Placeto": regret(rows, ms), "at random": regret(rows, None)}.items():
        cells = [f"{found.mean:.3f}", f"{found.worst:.2f}", f"{found.of_three:.3f}"]
        table.append([name, f"{found.groups}", *cells])
    print(f"{markdown(table)}\n")
    print(f"Left out: {len(every) - len(rows)} of {len(every)} rows, with groups of more than {max(WIDTHS)} GPUs.")


if __name__ == "__main__":
    command(main, OutsideVtrain, "outside_vtrain", __doc__, FIXED_ORDER)
