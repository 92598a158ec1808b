"""Does the simulator order the strategies that AMP measured on 16 T4, and is its first choice the fastest?

python -m experiments.outside_amp [--data ../shared/data/parallel]

AMP (Li et al., NeurIPS 2022, github.com/DachengLi1/AMP) measured training steps of GPT-2 with 345 million parameters on
four hosts with four T4 each: 47 strategies, of which the 16 without tensor parallelism are simulated here. Each is a
grid of stages and replicas in micro-batches, with the cuts between stages that AMP chose. The times of layers are those
of the cost model, by its own efficiencies of the T4; no number comes from the measured steps. As AMP's scripts have it,
all of the network computes in float16 under DeepSpeed. Gradients are summed in float32, those of the word embedding
also between the first and the last stage, which both have it. Links are those of g4dn.12xlarge: PCIe 3.0 within a host,
and between hosts 50 Gb/s of Ethernet, of which TCP leaves 94 %.

Gradients are summed round a ring, as NCCL does, whose transfers reach a share of a link: that of all-reduces of A100
(`experiments.collectives`).
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from scipy.stats import spearmanr

from experiments.command import command
from experiments.pipeline_steps import FIXED_ORDER, PipelineStep, simulated
from experiments.published_models import Sizes, language
from experiments.tables import markdown
from placeto.capture.trace import capture_training
from placeto.problem.cluster import Cluster, Link, Topology
from placeto.problem.cluster.boards import T4
from placeto.problem.cluster.presets import PCIE3, PCIE_LATENCY_US
from placeto.problem.costs import EFFICIENCY
from placeto.problem.costs.collectives import SHARE
from placeto.problem.graph import ComputationGraph
from placeto.problem.step.recomputation import RECOMPUTATION

HOSTS, LENGTH, WORDS, WIDTH, LAYERS = 4, 1024, 52_256, 1024, 24
NETWORK = 50e9 / 8 * 1448 / 1538
"""Bytes/s of 50 Gb/s Ethernet that TCP leaves of full frames (IEEE 802.3)."""
NETWORK_LATENCY_US = 50.0
"""As of the preset of hosts with V100."""
EMBEDDING, FIRST, NORM, HEAD = 1, 3, 28, 29
"""Numbers of the 30 layers of Megatron's pipeline: casts and transposes are layers of their own."""


class Strategy(NamedTuple):
    """One row of the table."""

    stages: int
    replicas: int
    micro_batch: int  # sequences
    micro_batches: int  # of each replica
    cuts: tuple[int, ...]  # first layer of each stage, and the end
    step_s: float
    predicted_s: float  # by AMP


def read_strategies(folder: Path) -> list[Strategy]:
    """Those without tensor parallelism."""
    found = []
    with (folder / "measured_parallel_steps.csv").open() as file:
        for row in csv.DictReader(file):
            if row["case"] == "amp-homogeneous" and row["tp"] == "1":
                cuts = re.search(r"stage cuts \[([\d, ]+)\]", row["notes"])
                predicted = re.search(r"AMP predicted ([\d.]+)", row["notes"])
                if cuts is None or predicted is None:
                    raise ValueError(f"{row['notes']!r} doesn't say the cuts and AMP's prediction")
                stages, replicas, size, count = (int(row[key]) for key in ("pp", "dp", "micro_batch", "microbatches"))
                borders, step_s = tuple(int(cut) for cut in cuts[1].split(",")), float(row["step_s"])
                found.append(Strategy(stages, replicas, size, count, borders, step_s, float(predicted[1])))
    return found


def layer_of(module: str) -> int:
    """Number of the layer that a module of the network belongs to."""
    name, *rest = module.split(".")
    if name == "layers":
        return FIRST + int(rest[0])
    return {"norm": NORM, "head": HEAD, "loss": HEAD}.get(name, EMBEDDING)


def captured(micro_batch: int) -> ComputationGraph:
    """A training step of one micro-batch in float16, with the update of AdamW, of a network with one layer."""
    with torch.device("meta"):
        step = language(Sizes(1, WIDTH, 16, WORDS, "gpt2"), LENGTH, micro_batch)
        module = step.module.half()

    def loss(logits: torch.Tensor, *targets: torch.Tensor) -> torch.Tensor:
        return step.loss(logits.float(), *targets)

    return capture_training(module, step.inputs, loss, targets=step.targets, name="gpt2", optimizer_step=True)


def layer_times(graph: ComputationGraph, layer: Callable[[str], int], count: int, cluster: Cluster) -> np.ndarray:
    """(L, 3) microseconds of each layer on the cluster's first device: forward, backward, update."""
    time = EFFICIENCY.op_time_us(graph, cluster)[:, 0]
    return by_layer(graph, layer, count, time + np.where(time > 0, cluster.overhead_us[0], 0.0))


def by_layer(graph: ComputationGraph, layer: Callable[[str], int], count: int, values: np.ndarray) -> np.ndarray:
    """(L, 3) sums of a value of each op (N,) over the passes of layers: forward, backward, update."""
    kinds = {"forward": 0, RECOMPUTATION: 1, "backward": 1, "": 2}  # the update belongs to no pass
    found = np.zeros((count, 3))
    for module, kind, value in zip(graph.modules, graph.passes, values.tolist(), strict=True):
        found[layer(module), kinds[kind]] += value
    return found


def parameter_counts(graph: ComputationGraph, layer: Callable[[str], int], count: int) -> np.ndarray:
    """(L,) parameters of each layer in float16."""
    found = np.zeros(count, np.int64)
    for op in np.flatnonzero(graph.trained_bytes).tolist():
        found[layer(graph.modules[op])] += int(graph.trained_bytes[op]) // 2
    return found


def machines(hosts: int = HOSTS) -> Cluster:
    """Hosts of four T4."""
    topology = Topology(
        ((4,),) * hosts,
        island=Link(PCIE3, PCIE_LATENCY_US),
        network=Link(NETWORK, NETWORK_LATENCY_US),
        card=Link(NETWORK),
    )
    boards = [replace(T4, name=f"gpu:{number:02}") for number in range(4 * hosts)]
    return Cluster.from_topology(f"{hosts} x g4dn.12xlarge", boards, topology)


def step_of(strategy: Strategy, graph: ComputationGraph, cluster: Cluster) -> PipelineStep:
    """A strategy: replicas of a stage are neighbours, as in DeepSpeed's grid of ranks."""
    count, devices = strategy.cuts[-1], cluster.num_devices
    times, parameters = layer_times(graph, layer_of, count, cluster), parameter_counts(graph, layer_of, count)
    for each in (times, parameters):
        each[FIRST : FIRST + LAYERS] = each[FIRST]  # all are alike
    boundary = 2 * strategy.micro_batch * LENGTH * WIDTH
    if strategy.stages == 1:
        parameters[HEAD] -= WORDS * WIDTH  # the embedding's own weights
    return PipelineStep(
        stages=[list(range(*pair)) for pair in zip(strategy.cuts, strategy.cuts[1:], strict=False)],
        devices=np.arange(devices).reshape(strategy.stages, strategy.replicas).tolist(),
        micro_batches=strategy.micro_batches,
        time_us=np.repeat(times[:, None], devices, axis=1),
        boundary_bytes=boundary,
        parameter_bytes=4 * parameters,
        saved_bytes=np.zeros((count, devices), np.int64),
        resident_bytes=np.zeros(devices, np.int64),
        receive_us=np.zeros(devices),
        waits=True,
        tied_bytes=2 * WORDS * WIDTH,
        sum_share=SHARE,
    )


def simulate_all(strategies: list[Strategy]) -> np.ndarray:
    """(S,) seconds of the steps."""
    cluster, graphs, found = machines(), dict[int, ComputationGraph](), []
    for strategy in strategies:
        if strategy.micro_batch not in graphs:
            graphs[strategy.micro_batch] = captured(strategy.micro_batch)
        step = step_of(strategy, graphs[strategy.micro_batch], cluster)
        found.append(simulated(step, cluster).makespan_us / 1e6)
    return np.array(found)


@dataclass(frozen=True)
class OutsideAmp:
    """Read, simulate, compare."""

    data: Path = Path("../shared/data/parallel")
    """folder of measured_parallel_steps.csv"""


def main(config: OutsideAmp) -> None:
    """The tables."""
    strategies = read_strategies(config.data)
    measured = np.array([strategy.step_s for strategy in strategies])
    ours, theirs = simulate_all(strategies), np.array([strategy.predicted_s for strategy in strategies])
    predicted = {"Placeto": ours, "AMP": theirs}
    head = ["stages x replicas", "micro-batch", "micro-batches", "measured s", *(f"{name} s" for name in predicted)]
    rows = [
        [
            f"{strategy.stages} x {strategy.replicas}",
            f"{strategy.micro_batch}",
            f"{strategy.micro_batches}",
            f"{strategy.step_s:.2f}",
            *(f"{found[number]:.2f}" for found in predicted.values()),
        ]
        for number, strategy in enumerate(strategies)
    ]
    print(f"{markdown([head, *rows])}\n")
    head = ["", "Spearman", "measured step of the first choice, s", "median error", "median factor"]
    rows = [
        [
            name,
            f"{spearmanr(found, measured).statistic:.3f}",
            f"{measured[found.argmin()]:.2f}",
            f"{100 * np.median(np.abs(found / measured - 1)):.0f} %",
            f"{np.median(found / measured):.2f}",
        ]
        for name, found in predicted.items()
    ]
    print(f"{markdown([head, *rows])}\n")
    print(f"The fastest of these {len(strategies)} took {measured.min():.2f} s. AMP's own numbers here are those of")
    print("the same strategies; of all 47 its Spearman is 0.932, and its first choice took 1.32 s.")


if __name__ == "__main__":
    command(main, OutsideAmp, "outside_amp", __doc__, FIXED_ORDER)
