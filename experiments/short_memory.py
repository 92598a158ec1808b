"""How much longer does a step take where memory is short, if blocks are recomputed, and if they aren't?

python -m experiments.short_memory [--models NAME ...] [--shares 0.8 0.5 0.3 0.2] [--between 0.1 0.25 0.5] [--workers 1]

The first table is about `placeto plan` without a search for a free placement. Each device has a share of the memory
that the fullest device of the best way needs without a limit. "None" is the best way that fits without recomputation;
"all" is the plan of the step in which all blocks are recomputed; "plan" chooses the blocks itself. Numbers are
makespans divided by that of the best way without a limit. "-" says that nothing fits. Seconds are of one process, of
`plan` with the limit and without.

The second table is about pipelines in eight micro-batches, with one stage on each device. The memory lies between that
of the best pipeline with all blocks recomputed and of that without recomputation: 0 is the former, 1 the latter. "None"
is the best of the plans that are tried without a limit. The others are found by the search that chooses borders and
blocks: if it may recompute no block, if all are recomputed but those in which a stage begins, and if it chooses. The
picture shows the same numbers for many sizes of memory.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import tyro
from matplotlib.figure import Figure

from experiments.command import command
from experiments.harness import measure_cells
from experiments.models_in_micro_batches import VisionTransformer
from experiments.tables import machine, markdown, publish
from graphs import bert, llama, moe, unet
from graphs.training_step import TrainingStep
from placeto.capture.trace import capture_training
from placeto.heuristics.plans import make_plan, ranked_plans
from placeto.heuristics.stage_memory import BlockCosts, block_costs, fitting_stages
from placeto.planning.planned_steps import PlannedStep
from placeto.planning.short_memory import fastest_near
from placeto.planning.single_ways import in_order
from placeto.planning.ways import plain_ways, plans_of
from placeto.problem.cluster import Cluster, load_cluster
from placeto.problem.graph import ComputationGraph
from placeto.problem.problem import PlacementProblem
from placeto.problem.step.plan import Plan
from placeto.problem.step.recomputation import recomputable, recomputed

COUNTS = (1, 2, 4, 8, 16)
PIPELINE_COUNT = 8
ENOUGH = 10**15
"""Bytes of memory of a device without a limit."""
BETWEEN = "none", "none, same search", "all", "plan"


def _gpt() -> TrainingStep:
    return llama.training_step(llama.Network(llama.Size(12, 768, 12, 12, 3072), 512, 64))


def _vit() -> TrainingStep:
    labels = torch.zeros(64, dtype=torch.long)
    images = torch.empty(64, 3, 224, 224)
    return TrainingStep(VisionTransformer(24, 1024), (images,), (labels,), torch.nn.functional.cross_entropy)


MODELS: Mapping[str, tuple[Callable[[], TrainingStep], int]] = {
    "GPT 12": (_gpt, 64),
    "BERT-large": (lambda: bert.training_step(bert.Network(24, 1024, 256, 64)), 64),
    "U-net": (lambda: unet.training_step(unet.Network(4, 64, 512, 32)), 32),
    "mixture of experts": (lambda: moe.training_step(moe.Network(12, 1024, 8, 2, 512, 32)), 32),
    "Llama 1.1B": (lambda: llama.training_step(llama.Network(llama.LLAMA_1B, 2048, 8)), 8),
    "ViT-L": (_vit, 64),
}
"""Makes the step, and the number of its samples."""
CLUSTERS = {"GPT 12": ("4xv100", "2x4xv100", "2xv100+2xp100")}
"""Clusters of the first table; 4xv100 for other models."""


@dataclass(frozen=True)
class ShortMemory:
    """Plan steps where memory is short."""

    out: Path = Path("runs/short_memory")
    """folder for a file of each row, for the table and the picture"""
    models: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME")] = tuple(MODELS)
    """which"""
    counts: tuple[int, ...] = COUNTS
    """numbers of micro-batches of the first table"""
    shares: tuple[float, ...] = (0.8, 0.5, 0.3, 0.2)
    """of the memory that is needed without a limit, in the first table"""
    between: tuple[float, ...] = (0.1, 0.25, 0.5)
    """sizes of memory of the second table"""
    pictured: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME")] = ("GPT 12", "ViT-L")
    """models of the picture"""
    points: int = 9
    """sizes of memory of the picture"""
    workers: int | None = 1
    """processes; None = all cores"""


@dataclass(frozen=True)
class Limit:
    """A model on a cluster with less memory than its best plan needs."""

    model: str
    cluster: str
    share: float
    counts: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.model} on {self.cluster}, {self.share:g}"


@dataclass(frozen=True)
class Between:
    """A model in a pipeline, with memory between that of all and of no blocks recomputed."""

    model: str
    share: float
    cluster: str = "4xv100"

    def __str__(self) -> str:
        return f"pipelines of {self.model} on {self.cluster}, {self.share:g}"


@cache
def captured(model: str, count: int, all_blocks: bool = False) -> ComputationGraph:
    """The model's step in micro-batches."""
    if all_blocks:
        graph = captured(model, count)
        return recomputed(graph, recomputable(graph))
    with torch.device("meta"):
        step = MODELS[model][0]()
    return capture_training(step.module, step.inputs, step.loss, targets=step.targets, micro_batches=count)


def with_memory(cluster: Cluster, memory: float) -> Cluster:
    """The cluster with this much memory on each device."""
    return replace(cluster, devices=tuple(replace(device, memory=int(memory)) for device in cluster.devices))


def problem_of(model: str, count: int, cluster: str, memory: float, all_blocks: bool = False) -> PlacementProblem:
    """The step on a cluster with this much memory on each device."""
    return PlacementProblem(captured(model, count, all_blocks), with_memory(load_cluster(cluster), memory))


def fastest(steps: Sequence[PlannedStep | None]) -> PlannedStep | None:
    """The fastest of those that fit."""
    return min((step for step in steps if step is not None and step.fits), key=lambda step: step.step_us, default=None)


@cache
def best_plan(
    model: str, cluster: str, counts: tuple[int, ...], memory: float = ENOUGH, all_blocks: bool = False
) -> tuple[PlannedStep | None, float]:
    """What `plan` finds, and the seconds that it takes; the graphs are captured before."""
    batch = MODELS[model][1]
    tried = tuple(count for count in counts if batch % count == 0)
    for count in tried:
        captured(model, count, all_blocks)
    begin = time.process_time()
    found = plans_of(lambda count: problem_of(model, count, cluster, memory, all_blocks), batch, tried, simulations=0)
    return fastest([found.best]), time.process_time() - begin


def limited(row: Limit) -> dict[str, Any]:
    """Microseconds of the best ways, their names, and seconds."""
    free, free_seconds = best_plan(row.model, row.cluster, row.counts)
    assert free is not None
    memory, batch = row.share * free.used, MODELS[row.model][1]
    plan, seconds = best_plan(row.model, row.cluster, row.counts, memory)
    tried = [count for count in row.counts if batch % count == 0]
    problems = [problem_of(row.model, count, row.cluster, memory) for count in tried]
    plain = plain_ways({problem.setting: problem for problem in problems}, batch, None, [])
    everything, _ = best_plan(row.model, row.cluster, row.counts, memory, True)
    ways = {"none": fastest(plain), "all": everything, "plan": plan}
    return {
        **{name: step and step.step_us / free.step_us for name, step in ways.items()},
        "free": free.name,
        "way": plan.name if plan else "-",
        "recomputed": plan.recomputed if plan else "",
        "memory": memory,
        "seconds": seconds,
        "free seconds": free_seconds,
    }


class _AllBlocks(BlockCosts):
    """Costs for a search that recomputes all blocks, except those in which a stage begins."""

    def near(self, plan: Plan) -> Iterator[Plan]:
        """Yield plans with a border at the next cut."""
        for moved in super().near(plan):
            yield self.recomputing(moved, [len(self.paths)] * len(moved.devices))


def between(row: Between) -> dict[str, Any]:
    """Makespans of pipelines divided by that of the best one without a limit and without recomputation."""
    wide = problem_of(row.model, PIPELINE_COUNT, row.cluster, ENOUGH)
    free, least = fastest(_tried(wide, row)), _searched(wide, _costs(wide, "all"), row)
    assert free is not None
    assert least is not None
    memory = least.used + row.share * (free.used - least.used)
    problem = replace(wide, cluster=with_memory(wide.cluster, memory))
    searched = [_searched(problem, _costs(problem, blocks), row) for blocks in ("none", "all", "chosen")]
    made = {name: step and step.step_us / free.step_us for name, step in zip(BETWEEN[1:], searched, strict=True)}
    none, plan = fastest(_tried(problem, row)), searched[-1].plan if searched[-1] else None
    blocks = {"blocks": len(plan.recomputed) if plan else 0, "of": len(recomputable(problem.graph))}
    return {BETWEEN[0]: none and none.step_us / free.step_us, **made, "memory": memory, **blocks}


def _tried(problem: PlacementProblem, row: Between) -> list[PlannedStep]:
    """The best pipelines with one stage on each device, of those that are tried without a limit."""

    def one_each(plan: Plan) -> bool:
        return len(plan.devices) == len(plan.used) == problem.num_devices and not plan.interleaved

    plans = [plan for _, plan in ranked_plans(problem, one_each) if one_each(plan)][:2]
    return [step for plan in plans for step in in_order(problem, plan, MODELS[row.model][1], None, one_each)]


def _costs(problem: PlacementProblem, blocks: str) -> BlockCosts:
    """Costs for a search that may recompute no block, or all, or chooses."""
    costs = block_costs(problem)
    assert costs is not None
    if blocks == "none":
        return replace(costs, paths=(), block=np.full_like(costs.block, -1), spans=costs.spans[:0])
    return _AllBlocks(**vars_of(costs)) if blocks == "all" else costs


def vars_of(costs: BlockCosts) -> dict[str, Any]:
    """The fields of a dataclass."""
    return {each.name: getattr(costs, each.name) for each in fields(costs)}


def _any(plan: Plan) -> bool:
    return True


def _searched(problem: PlacementProblem, costs: BlockCosts, row: Between) -> PlannedStep | None:
    """The best pipeline with one stage on each device, of those whose borders and blocks are chosen by memory."""
    devices = tuple((device,) for device in range(problem.num_devices))
    starts = [costs.in_stages(make_plan(problem, devices))]
    for room in (1.0, 0.9):
        if (made := fitting_stages(problem, costs, devices, room)) is not None:
            starts.append(replace(make_plan(problem, devices, made[0]), recomputed=made[1]))
    if isinstance(costs, _AllBlocks):
        starts = [start and costs.recomputing(start, [len(costs.paths)] * len(devices)) for start in starts]
    batch = MODELS[row.model][1]
    return fastest([fastest_near(problem, costs, plan, batch, None, _any) for plan in dict.fromkeys(starts) if plan])


def main(config: ShortMemory) -> None:
    """Plan what is missing, print the tables, write them and the picture."""
    config.out.mkdir(parents=True, exist_ok=True)
    rows = [
        Limit(model, cluster, share, config.counts)
        for model in config.models
        for cluster in CLUSTERS.get(model, ("4xv100",))
        for share in config.shares
    ]
    cells = [Between(*cell) for cell in product(config.models, config.between)]
    pictured = [model for model in config.pictured if model in config.models]
    points = [Between(model, round(share, 3)) for model in pictured for share in np.linspace(0.0, 1.0, config.points)]

    def file(row: Limit | Between) -> Path:
        counts = "_".join(map(str, row.counts)) if isinstance(row, Limit) else "pipeline"
        return config.out / f"{row.model}_{row.cluster}_{row.share:g}_{counts}.json"

    first = measure_cells(rows, limited, "planning", workers=config.workers, file=file)
    second = measure_cells([*cells, *points], between, "planning", workers=config.workers, file=file)
    lines = [
        f"{len(rows)} rows; {machine()}. {_sentence(first.values())}",
        markdown(limits_table(first), 2),
        f"Pipelines in {PIPELINE_COUNT} micro-batches. {_pipelines_sentence([second[cell] for cell in cells])}",
        markdown(between_table({cell: second[cell] for cell in cells}), 1),
    ]
    figure = picture({point: second[point] for point in points}) if points else None
    publish(config.out, "short_memory", lines, figure)


def mean_ratio(ratios: Sequence[float]) -> float:
    """Geometric mean; 1 if there is none."""
    return math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios else 1.0


def _sentence(rows: Sequence[Mapping[str, Any]] | Any) -> str:
    rows = [*rows]
    rescued = [row for row in rows if row["none"] is None and row["all"] is not None]
    ratios = [row["plan"] / row["all"] for row in rescued if row["plan"] is not None]
    seconds = mean_ratio([row["seconds"] / row["free seconds"] for row in rows])
    return (
        f"In {len(rescued)} rows nothing fits without recomputation, but with all blocks recomputed; `plan` fits in "
        f"{len(ratios)} of them, and takes {100.0 * (1.0 - mean_ratio(ratios)):.1f} % less time than all. It takes "
        f"{seconds:.2f} times as many seconds with a limit as without (geometric means)."
    )


def _pipelines_sentence(rows: Sequence[Mapping[str, Any]]) -> str:
    words = list[str]()
    for others in (("none", "all"), ("none, same search", "all")):
        better = [
            row["plan"] / min(row[other] for other in others if row[other] is not None)
            for row in rows
            if row["plan"] is not None and any(row[other] is not None for other in others)
        ]
        less = 100.0 * (1.0 - mean_ratio(better))
        words.append(
            f"`plan` takes {less:.1f} % less time than the better of {' and '.join(others)} ({len(better)} rows)"
        )
    fits = {name: sum(row[name] is not None for row in rows) for name in BETWEEN}
    counts = ", ".join(f"{name} in {count}" for name, count in fits.items())
    return (
        f"{'; '.join(words)}; geometric means over rows in which one of them fits. Of {len(rows)} rows fit: {counts}."
    )


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def limits_table(found: Mapping[Limit, Mapping[str, Any]]) -> list[list[str]]:
    """A line for each row of the first table."""
    lines = [["model", "cluster", "share", "GB", "none", "all", "plan", "recomputed", "seconds", "without a limit"]]
    for row, made in found.items():
        numbers = [f"{row.share:g}", f"{made['memory'] / 1e9:.1f}", *(_number(made[name]) for name in ("none", "all"))]
        seconds = [f"{made[name]:.0f}" for name in ("seconds", "free seconds")]
        lines.append([row.model, row.cluster, *numbers, _number(made["plan"]), made["recomputed"] or "-", *seconds])
    return lines


def between_table(found: Mapping[Between, Mapping[str, Any]]) -> list[list[str]]:
    """A line for each row of the second table."""
    lines = [["model", "memory", "GB", *BETWEEN, "recomputed"]]
    for row, made in found.items():
        blocks = f"{made['blocks']} of {made['of']}"
        numbers = [_number(made[name]) for name in BETWEEN]
        lines.append([row.model, f"{row.share:g}", f"{made['memory'] / 1e9:.1f}", *numbers, blocks])
    return lines


def picture(found: Mapping[Between, Mapping[str, Any]]) -> Figure:
    """A panel for each model: makespan against memory."""
    models = [*dict.fromkeys(row.model for row in found)]
    figure = Figure(figsize=(4.2 * len(models), 3.4), layout="constrained")
    for number, model in enumerate(models, 1):
        axes = figure.add_subplot(1, len(models), number)
        own = [made for row, made in found.items() if row.model == model]
        memory = [made["memory"] / 1e9 for made in own]
        for name, color, dash in zip(BETWEEN, ("C0", "C0", "C1", "black"), ("-", ":", "-", "-"), strict=True):
            times = [math.nan if made[name] is None else made[name] for made in own]
            axes.plot(memory, times, color=color, linestyle=dash, marker=".", label=name)
        axes.set_title(f"{model} on {next(iter(found)).cluster}", loc="left", fontsize=10)
        axes.set_xlabel("memory of each device, GB")
        axes.set_ylabel("makespan / without a limit")
        axes.grid(alpha=0.3)
        axes.legend(frameon=False, fontsize=8)
    return figure


if __name__ == "__main__":
    command(main, ShortMemory, "short_memory", __doc__)
