"""Do wider groups cost more time than more stages for the memory that they save, as Megatron-Bridge measured?

python -m experiments.outside_recipe [--data ../shared/data/outside/checkpoints]

NVIDIA published three settings of one step: Llama 3 70B on 32 H100 in FP8, with 32 sequences of 4,096 words, one a
micro-batch, and interleaved 1F1B of five chunks a rank. The inner part of attention is computed again. The times are in
NVIDIA-NeMo/Megatron-Bridge, skills/nemo-mbridge-perf-memory-tuning and -activation-recompute; its recipe
llama3_70b_sft_32gpu_h100_fp8cs_config says the rest: sequence parallelism, gradients in 16 bits, and an optimizer whose
state is divided between replicas.

Layers take what a captured layer of one rank takes by the cost model, sharded as torch does it. Assumed is: matrix
products of layers run in FP8 as near to its peak as products of 16 bits to theirs, and casts cost nothing. All else is
in bfloat16. Norms are LayerNorms, which are one op as Megatron's RMSNorms are. Gradients of replicas are summed behind
the last backward pass. In the second simulation collectives of groups cost nothing, as if the recipe's overlap hid them
all. Memory is that of parameters, gradients, the optimizer and activations in 16 bits, on the fullest device.
"""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleOutput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
)

from experiments.command import command
from experiments.outside_amp import by_layer
from experiments.outside_vtrain import priced, without_overhead
from experiments.pipeline_steps import FIXED_ORDER, PipelineStep, interleaved, simulated
from experiments.tables import markdown
from graphs.llama import Llama, Size, loss
from placeto.capture.trace import capture_training
from placeto.problem.cluster import Cluster, Link, Topology
from placeto.problem.cluster.boards import H100
from placeto.problem.costs import EFFICIENCY
from placeto.problem.costs.collectives import collective_us
from placeto.problem.costs.group_costs import in_groups
from placeto.problem.graph import ComputationGraph
from placeto.problem.problem import PlacementProblem
from placeto.simulator.schedule import simulate

LLAMA_WORDS = 128_256
SIZE, LENGTH, SEQUENCES, CHUNKS = Size(80, 8192, 64, 8, 28672), 4096, 32, 5
HOSTS = Topology(((8,),) * 4, island=Link(380e9, 8.0), network=Link(45e9, 15.0), card=Link(45e9), cards=8)
"""As in the preset 8x8xh100."""
FEW = 4, 8
"""Layers of two models, whose difference tells what a layer keeps: of smaller ones the memory is full elsewhere."""
SEQUENCE = Shard(1)
WHOLE = PrepareModuleOutput(output_layouts=SEQUENCE, desired_output_layouts=Replicate(), use_local_output=False)
SHARDED = {
    "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=SEQUENCE),
    "layers.*.norms.*": SequenceParallel(),
    "norm": SequenceParallel(),
    "layers.*.norms.?": WHOLE,  # gathers the words for all products that read them
    "nor?": WHOLE,
    **{f"layers.*.attention.{name}": ColwiseParallel() for name in ("query", "key", "value")},
    "layers.*.attention.output": RowwiseParallel(output_layouts=SEQUENCE),
    "layers.*.gate": ColwiseParallel(),
    "layers.*.up": ColwiseParallel(),
    "layers.*.down": RowwiseParallel(output_layouts=SEQUENCE),
    "output": ColwiseParallel(use_local_output=False),
}
"""Tensor and sequence parallelism; two patterns of one module apply one style after the other."""


def part_of(module: str) -> int:
    """Embedding, layer, or head with norm and loss."""
    return {"embedding": 0, "layers": 1}.get(module.split(".")[0], 2)


class Recipe(NamedTuple):
    """A setting and what was measured."""

    width: int
    stages: int
    replicas: int
    gigabytes: float
    tflops: float  # a second and GPU

    @property
    def name(self) -> str:
        """As its authors call it."""
        return f"TP{self.width} PP{self.stages} DP{self.replicas}"


def read_recipes(path: Path) -> list[Recipe]:
    """The settings in which attention's inner part is computed again."""
    found = []
    with path.open() as file:
        for row in csv.DictReader(file):
            name = re.fullmatch(rf"Llama3 70B TP(\d) PP(\d) VPP{CHUNKS} DP(\d)", row["workload"])
            if name and row["policy"] == "core_attn":
                width, stages, replicas = map(int, name.groups())
                found.append(Recipe(width, stages, replicas, float(row["peak_gib_or_gb"]), float(row["throughput"])))
    return found


@cache
def graph_of(layers: int, width: int, size: Size = SIZE, length: int = LENGTH) -> ComputationGraph:
    """A rank's step of one sequence, without the optimizer; matrix products of layers are in FP8."""
    with torch.device("meta"):
        module = Llama(replace(size, layers=layers), length)
        module.embedding = nn.Embedding(LLAMA_WORDS, size.width)
        module.output = nn.Linear(size.width, LLAMA_WORDS, bias=False)
        for owner in list(module.modules()):
            for name, part in list(owner.named_children()):
                if isinstance(part, nn.RMSNorm):
                    setattr(owner, name, nn.LayerNorm(size.width, bias=False))
        words = torch.zeros(1, length, dtype=torch.long)
    how: dict[str, Any] = {"optimizer": "sgd", "width": width, "parallel": SHARDED}
    with loss_parallel():
        graph = capture_training(module.bfloat16(), (words,), loss, targets=(words,), name="llama", **how)
    ops = zip(graph.op_types, graph.modules, graph.dtypes, strict=True)
    dtypes = ("float8" if kind == "aten.mm" and at.startswith("layers") else dtype for kind, at, dtype in ops)
    return replace(graph, dtypes=tuple(dtypes))


def kept_bytes(width: int, cluster: Cluster) -> int:
    """Of the activations of a layer on a rank, from its forward to its backward pass."""
    groups, costs = in_groups(cluster, EFFICIENCY, width)
    used = []
    for layers in FEW:
        graph = graph_of(layers, width)
        peaks = simulate(PlacementProblem(graph, groups, costs), np.zeros(graph.num_ops, np.int64)).peak_memory
        used.append(int(peaks[0]) - int((graph.param_bytes + graph.state_bytes).sum()))
    return (used[1] - used[0]) // (FEW[1] - FEW[0])


def step_of(recipe: Recipe, cluster: Cluster, hidden: bool) -> tuple[PipelineStep, Cluster]:
    """A setting as a pipeline, and its groups; `hidden` = their collectives cost nothing."""
    width, ranks, replicas = recipe.width, recipe.stages, recipe.replicas
    graph, groups = graph_of(1, width), in_groups(cluster, EFFICIENCY, width)[0]
    layers, attention = priced(graph, part_of, width, cluster), ["dot_product" in kind for kind in graph.op_types]
    time_us = layers.time_us - layers.collective_us * hidden
    again = by_layer(graph, part_of, 3, EFFICIENCY.op_time_us(graph, groups)[:, 0] * attention)
    time_us[:, 1] += again[:, 0]
    places = np.array([0, *[1] * SIZE.layers, 2])
    kept = np.where(places == 1, kept_bytes(width, cluster), 0)
    sizes = np.full(ranks * CHUNKS, SIZE.layers // ranks // CHUNKS)
    sizes[[0, -1]] += 1
    parameters = layers.parameters[places]
    stages = [list(range(*pair)) for pair in pairwise([0, *np.cumsum(sizes).tolist()])]
    grid = np.arange(ranks * replicas).reshape(ranks, replicas)
    own = [sum(int(parameters[stage].sum()) for stage in stages[rank::ranks]) for rank in range(ranks)]
    devices, link = ranks * replicas, (float(groups.bandwidth[0, 1]), float(groups.latency_us[0, 1]))
    step = PipelineStep(
        stages=stages,
        devices=[grid[stage % ranks].tolist() for stage in range(len(stages))],
        micro_batches=SEQUENCES // replicas,
        time_us=np.repeat(time_us[places][:, None], devices, axis=1),
        boundary_bytes=2 * LENGTH * SIZE.width // width,
        parameter_bytes=2 * parameters,
        saved_bytes=np.repeat(kept[:, None], devices, axis=1),
        resident_bytes=np.repeat([(2 + 2 + 12 // replicas) * count for count in own], replicas),
        receive_us=np.zeros(devices),
        turns=interleaved(ranks, CHUNKS, SEQUENCES // replicas),
        sum_us=lambda size, count: collective_us("all_reduce", size, count, *link),  # of neighbours on a host
    )
    return step, without_overhead(groups)


@dataclass(frozen=True)
class OutsideRecipe:
    """Read, simulate, compare."""

    data: Path = Path("../shared/data/outside/checkpoints")
    """folder of measured.csv"""


def main(config: OutsideRecipe) -> None:
    """The table."""
    boards = [replace(H100, name=f"gpu:{number:02}") for number in range(32)]
    cluster = Cluster.from_topology("hosts", boards, HOSTS)
    found = []
    for recipe in read_recipes(config.data / "measured.csv"):
        schedules = [simulated(*step_of(recipe, cluster, hidden)) for hidden in (False, True)]
        us, hidden_us = (schedule.makespan_us for schedule in schedules)
        found.append((recipe, us, hidden_us, schedules[0].peak_memory.max() / 1e9))
    first, first_us, first_hidden_us, first_gb = found[0]
    products = SIZE.layers * SIZE.width * (2.25 * SIZE.width + 3 * SIZE.inner + LENGTH) + SIZE.width * LLAMA_WORDS
    work = 6e-6 * products * LENGTH * SEQUENCES / 32  # of both passes on a GPU, in millions of FLOPs
    table = [["setting", "GB", "simulated", "TFLOP/s", "simulated", "time", "simulated", "collectives hidden"]]
    prices = []
    for recipe, us, hidden_us, used in found:
        times = first.tflops / recipe.tflops, us / first_us, hidden_us / first_hidden_us
        cells = [f"{recipe.gigabytes:.1f}", f"{used:.1f}", f"{recipe.tflops:.0f}", f"{work / us:.0f}"]
        table.append([recipe.name, *cells, *(f"{time:.3f}" for time in times)])
        if recipe is not first:
            measured, ours = (times[0] - 1) / (first.gigabytes - recipe.gigabytes), (times[1] - 1) / (first_gb - used)
            prices.append(
                f"{recipe.name}: measured {100 * measured:.1f} % more time for each GB saved, ours {100 * ours:.1f} %."
            )
    print(f"{markdown(table)}\n")
    print("Time is that of a step, over that of the first setting.\n" + "\n".join(prices))


if __name__ == "__main__":
    command(main, OutsideRecipe, "outside_recipe", __doc__, FIXED_ORDER)
