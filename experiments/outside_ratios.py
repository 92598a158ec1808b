"""Do ratios of simulated steps agree with ratios that torchtitan and llm-foundry measured?

python -m experiments.outside_ratios [--data ../shared/data/parallel]

Each ratio is of two settings that differ in one thing: 1F1B and interleaved 1F1B (torchtitan, Llama 3.1 405B on 512
H100), equal and balanced stages (torchtitan's pull request 2113, four RTX 3090), and fewer and more GPUs for the same
batch on each (llm-foundry, MPT). Layers take what a captured layer takes by the cost model; a group of tensor
parallelism is one device, whose GPUs share the work of a layer.

What the sources don't say is taken from torchtitan's defaults of the time: as many micro-batches as pipeline ranks and
two stages a rank in the first, and in the second eight micro-batches of one sequence of 2048 words (debug_model.toml).
FSDP is simulated as data parallelism whose optimizer is sharded: a weight is sent to all when the step begins and its
gradients are summed where it is, both beside the computation. FSDP sends weights once more in the backward pass.
"""

from __future__ import annotations

import csv
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from experiments.command import command
from experiments.outside_amp import layer_times
from experiments.pipeline_steps import FIXED_ORDER, PipelineStep, interleaved, simulated
from experiments.tables import markdown
from graphs.llama import Llama, Size, loss
from placeto.capture.trace import capture_training
from placeto.problem.cluster import CLUSTERS, Cluster, Device, Link, Topology
from placeto.problem.cluster.boards import A100_40GB, H100, RTX3090
from placeto.problem.cluster.presets import PCIE4, SOCKETS_LATENCY_US
from placeto.problem.graph import ComputationGraph
from placeto.problem.graph.gradient_sums import GRADIENT
from placeto.problem.problem import PlacementProblem
from placeto.simulator.schedule import simulate

LLAMA_WORDS = 128_256
EMBEDDING, LAYER, HEAD = 0, 1, 2
PARTS = 4
"""Weights of a layer, alike, which have homes of their own."""


def part_of(module: str) -> int:
    """Embedding, layer, or head with norm and loss."""
    return {"embedding": EMBEDDING, "layers": LAYER}.get(module.split(".")[0], HEAD)


def parts_us(size: Size, words: int, length: int, batch: int, device: Device) -> np.ndarray:
    """(3, 2) microseconds of the embedding, a layer and the head: forward and backward, in bfloat16."""
    with torch.device("meta"):
        model = Llama(replace(size, layers=1), length)
        model.embedding, model.output = nn.Embedding(words, size.width), nn.Linear(size.width, words, bias=False)
        tokens = torch.zeros(batch, length, dtype=torch.long)
    graph = capture_training(model, (tokens,), loss, targets=(tokens,), name="layer", precision="bf16")
    alone = Cluster("alone", (device,), np.ones((1, 1)), np.zeros((1, 1)))
    return layer_times(graph, part_of, 3, alone)[:, :2]


def pipeline(
    stages: Sequence[Sequence[int]], times: np.ndarray, micro_batches: int, boundary_bytes: int, cluster: Cluster
) -> float:
    """Microseconds of a step of stages, in turn on the devices of a cluster; `times` (L, 2) forward and backward."""
    devices, count = cluster.num_devices, len(times)
    several = len(stages) > devices
    step = PipelineStep(
        stages=stages,
        devices=[[stage % devices] for stage in range(len(stages))],
        micro_batches=micro_batches,
        time_us=np.repeat(np.pad(times, ((0, 0), (0, 1)))[:, None], devices, axis=1),
        boundary_bytes=boundary_bytes,
        parameter_bytes=np.zeros(count, np.int64),
        saved_bytes=np.zeros((count, devices), np.int64),
        resident_bytes=np.zeros(devices, np.int64),
        receive_us=np.zeros(devices),
        turns=interleaved(devices, len(stages) // devices, micro_batches) if several else None,
    )
    return simulated(step, cluster).makespan_us


def equal_stages(layers: int, stages: int) -> list[list[int]]:
    """As many layers a stage, the first and the last with fewer; layer 0 is the embedding, the last one the head."""
    least, more = divmod(layers, stages)
    sizes = [least] + [least + (number < more) for number in range(stages - 1)]
    sizes[0] += 1
    sizes[-1] += 1
    ends = np.cumsum([0, *sizes]).tolist()
    return [list(range(*pair)) for pair in itertools.pairwise(ends)]


def interleaving(micro_batches: int, chunks: int) -> float:
    """Step of 1F1B over that of interleaved 1F1B: Llama 3.1 405B, 8 ranks of 8 H100, 32 sequences of 8192 words."""
    size, ranks, gpus, sequences = Size(126, 16384, 128, 8, 53248), 8, 8, 32
    batch = sequences // micro_batches
    part = parts_us(size, LLAMA_WORDS, 8192, batch, H100) / gpus
    part[LAYER, 1] += part[LAYER, 0]  # full activation checkpointing runs the forward pass again
    times = np.array([part[EMBEDDING], *[part[LAYER]] * size.layers, part[HEAD]])
    rate = gpus * 45e3  # bytes/us: a network card for each GPU, as in the preset 8x8xh100
    groups = tuple(replace(H100, name=f"group:{rank}") for rank in range(ranks))
    cluster = Cluster("groups", groups, np.full((ranks, ranks), rate), np.full((ranks, ranks), 15.0))
    sent = 2 * batch * 8192 * size.width
    spans = [
        pipeline(equal_stages(size.layers, count), times, micro_batches, sent, cluster)
        for count in (ranks, ranks * chunks)
    ]
    return spans[0] / spans[1]


def balancing(width: int, layers: int) -> float:
    """Step of equal stages over that of the best cut: four RTX 3090, eight micro-batches."""
    inner = 256 * -(-8 * width // (3 * 256))  # torchtitan's feed-forward networks
    part = parts_us(Size(layers, width, 16, 16, inner), LLAMA_WORDS, 2048, 1, RTX3090)
    times = np.array([part[EMBEDDING], *[part[LAYER]] * layers, part[HEAD]])
    boards = tuple(replace(RTX3090, name=f"gpu:{number}") for number in range(4))
    rates, latencies = np.full((4, 4), PCIE4 / 2e6), np.full((4, 4), SOCKETS_LATENCY_US)
    cluster, sent = Cluster("4xrtx3090", boards, rates, latencies), 4 * 2048 * width

    def span(borders: Sequence[int]) -> float:
        ends = itertools.pairwise([0, *borders, len(times)])
        return pipeline([list(range(*pair)) for pair in ends], times, 8, sent, cluster)

    counts = [(layers + 2) // 4 + (stage < (layers + 2) % 4) for stage in range(4)]  # embedding and head count as one
    equal = span(np.cumsum(counts)[:-1].tolist())
    return equal / min(span(borders) for borders in itertools.combinations(range(1, len(times)), 3))


def data_parallel(size: Size, words: int, length: int, batch: int, cluster: Cluster) -> float:
    """Microseconds of a step with a micro-batch on each GPU, weights and sums of gradients spread over all."""
    part = parts_us(size, words, length, batch, cluster.devices[0])
    times = [part[EMBEDDING], *[part[LAYER]] * size.layers, part[HEAD]]
    layer = 2 * (4 * size.width**2 + 3 * size.width * size.inner)
    weights = [2 * words * size.width, *[layer] * size.layers, 0]  # the head's are the embedding's
    devices, ops, placed = cluster.num_devices, list[dict[str, Any]](), list[int]()

    def add(name: str, device: int, record: dict[str, Any]) -> None:
        ops.append({"name": name, "time_us": {"*": 0.0}, **record})
        placed.append(device)

    homes = {key: number % devices for number, key in enumerate(itertools.product(range(len(times)), range(PARTS)))}
    for (number, part_number), home in homes.items():
        record = {"type": "parameter", "outputs": [weights[number] // PARTS], "pass": "forward"}
        add(f"w{number} {part_number}", home, record)
    for device in range(devices):
        labels: dict[str, Any] = {"micro_batch": device}
        for number, (forward, _) in enumerate(times):
            inputs = [(f"f{number - 1} {device}", 0)] * (number > 0)
            inputs += [(f"w{number} {each}", 0) for each in range(PARTS)]
            made = {"time_us": {"*": float(forward)}, "inputs": inputs, "outputs": [0], "pass": "forward"}
            add(f"f{number} {device}", device, labels | made)
        for number, (_, backward) in reversed(list(enumerate(times))):
            last = f"b{number + 1} {device}" if number + 1 < len(times) else f"f{number} {device}"
            outputs = [0] + [weights[number] // PARTS] * PARTS
            made = {"time_us": {"*": float(backward)}, "inputs": [(last, 0)], "outputs": outputs, "pass": "backward"}
            add(f"b{number} {device}", device, labels | made)
    for (number, each), home in homes.items():
        total, outputs = (f"b{number} 0", each + 1), [weights[number] // PARTS]
        labels = {"pass": "backward", "gradient_of": f"w{number} {each}"}
        for device in range(1, devices):
            record = {"type": "aten.add", "inputs": [total, (f"b{number} {device}", each + 1)], "outputs": outputs}
            add(name := f"a{number} {each} {device}", home, record | labels)
            total = name, 0
        add(f"g{number} {each}", home, {"type": GRADIENT, "inputs": [total], "outputs": outputs, **labels})
    problem = PlacementProblem(ComputationGraph.from_ops("data parallel", ops), cluster, dispatch="1f1b")
    return simulate(problem, np.array(placed)).makespan_us


def machines(gpu: str, gpus: int) -> Cluster:
    """Hosts of eight H100 as in the presets, or of eight A100 with 40 GB and a card of 200 Gb/s for each."""
    device, within = (H100, Link(380e9, 8.0)) if gpu.startswith("h100") else (A100_40GB, Link(253e9, 8.0))
    hosts, network = gpus // 8, 45e9 if device is H100 else 22.5e9
    if hosts == 1:
        return CLUSTERS["8xh100" if device is H100 else "8xa100-40gb"]()
    topology = Topology(((8,),) * hosts, island=within, network=Link(network, 15.0), card=Link(network), cards=8)
    return Cluster.from_topology("hosts", [replace(device, name=f"gpu:{n:02}") for n in range(gpus)], topology)


def scalings(folder: Path) -> list[tuple[str, float, float]]:
    """More GPUs with the same batch on each: tokens/s a GPU of more over fewer, measured and ours."""
    groups: dict[tuple[str, ...], list[dict[str, str]]] = {}
    with (folder / "measured_parallel_steps.csv").open() as file:
        for row in csv.DictReader(file):
            keys = ("model", "gpu", "seq", "precision", "micro_batch", "microbatches", "recompute")
            if row["case"] == "llm-foundry" and row["microbatches"] == "1" and int(row["gpus"]) % 8 == 0:
                groups.setdefault(tuple(row[key] for key in keys), []).append(row)
    found = []
    for rows in groups.values():
        least, most = (min(rows, key=lambda row: int(row["gpus"])), max(rows, key=lambda row: int(row["gpus"])))
        if least["gpus"] == most["gpus"] or least["recompute"] != "none":
            continue
        width, heads = int(least["hidden"]), int(least["heads"])
        size = Size(int(least["layers"]), width, heads, heads, 8 * width // 3)
        spans = [
            data_parallel(size, int(row["vocab"]), int(row["seq"]), int(row["micro_batch"]), machines(row["gpu"], gpus))
            for row in (least, most)
            if (gpus := int(row["gpus"]))
        ]
        name = f"{least['model']}, {least['gpu'].split('_')[0].upper()}, {least['gpus']} to {most['gpus']} GPUs"
        found.append((name, float(most["tokens_s_gpu"]) / float(least["tokens_s_gpu"]), spans[0] / spans[1]))
    return found


@dataclass(frozen=True)
class OutsideRatios:
    """Simulate, compare."""

    data: Path = Path("../shared/data/parallel")
    """folder of measured_parallel_steps.csv"""


def main(config: OutsideRatios) -> None:
    """The table."""
    if not (config.data / "measured_parallel_steps.csv").exists():
        print(f"skipped: there is no {config.data / 'measured_parallel_steps.csv'}")
        return
    found = [
        ("1F1B to interleaved, 8 micro-batches, 2 stages a rank", 1.28, interleaving(8, 2)),
        ("the same, 32 micro-batches", 1.28, interleaving(32, 2)),
    ]
    tokens = {(256, 6): (31_094, 29_549), (256, 12): (21_803, 21_923), (2048, 12): (3348, 2616), (4096, 12): (981, 761)}
    for (width, layers), (balanced, equal) in tokens.items():
        found.append(
            (f"equal to balanced stages, {layers} layers of {width}", balanced / equal, balancing(width, layers))
        )
    found += scalings(config.data)
    head = ["what changes", "measured", "simulated"]
    rows = [[name, f"{measured:.3f}", f"{ours:.3f}"] for name, measured, ours in found]
    print(f"{markdown([head, *rows])}\n")
    errors = [100 * abs(ours / measured - 1) for _, measured, ours in found]
    print("Ratios of tokens per second and GPU, of what stands second to what stands first.")
    print(f"Median error {np.median(errors):.1f} %, largest {max(errors):.0f} %.")


if __name__ == "__main__":
    command(main, OutsideRatios, "outside_ratios", __doc__, FIXED_ORDER)
