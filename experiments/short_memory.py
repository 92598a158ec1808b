"""How much longer does a step take where memory is short, if blocks are recomputed, and if they aren't?

python -m experiments.short_memory [--models NAME ...] [--between 0.1 0.5] [--workers 1]

The first table is about `placeto plan` without a search for a free placement. Each device has a share of the memory
that the fullest device of the best way needs without a limit. "None" is the best way that fits without recomputation;
"all" is the best way of the step in which all blocks are recomputed; "plan" chooses the blocks itself, and the replicas
of its pipelines share out the optimizer's state. "Random" is the way of "plan" with as many blocks in random places:
the mean of the draws that fit, and how many fit. Numbers are makespans divided by that of the best way without a limit.
"-" says that nothing fits. Seconds are of one process, of `plan` with the limit and without.

The second table is about pipelines in eight micro-batches, with one stage on each device. The memory lies between that
of the best pipeline with all blocks recomputed and of that without recomputation: 0 is the former, 1 the latter. "None"
is the best of the plans that are tried without a limit. The others are found by the search that chooses borders and
blocks: if it may recompute no block, if all are recomputed but those in which a stage begins, and if it chooses. The
picture shows the same numbers for further sizes of memory.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache, partial
from itertools import pairwise, product
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
from graphs import bert, llama, unet
from graphs.training_step import TrainingStep
from placeto.capture.trace import capture_training
from placeto.heuristics.pipelines.block_costs import BlockCosts, block_costs
from placeto.heuristics.pipelines.plan_chunks import order_of_ops
from placeto.heuristics.pipelines.plans import make_plan, ranked_plans
from placeto.heuristics.pipelines.stage_memory import by_chunks, fitting_stages
from placeto.planning.collecting import collected_seldom
from placeto.planning.planned_steps import PlannedStep
from placeto.planning.runnable import Runner
from placeto.planning.short_memory import fastest_near
from placeto.planning.single_ways import in_order, one_device, replicas_of
from placeto.planning.variants import Variants
from placeto.planning.ways import _planned_ways, plain_ways
from placeto.problem.cluster import Cluster, load_cluster
from placeto.problem.costs import EFFICIENCY
from placeto.problem.graph import ComputationGraph
from placeto.problem.problem import PlacementProblem
from placeto.problem.step.plan import Plan
from placeto.problem.step.recomputation import recomputable, recomputed

COUNTS = (1, 4, 16)
PIPELINE_COUNT = 8
DRAWS = 5
"""How often blocks are drawn."""
ENOUGH = 10**15
"""Bytes of memory of a device without a limit."""
BETWEEN = "none", "none, same search", "all", "plan"
SHOWN = "none", "none, same search", "all", "random", "plan"


def _gpt() -> TrainingStep:
    return llama.training_step(llama.Network(llama.Size(12, 768, 12, 12, 3072), 512, 64))


def _vit() -> TrainingStep:
    labels = torch.zeros(64, dtype=torch.long)
    images = torch.empty(64, 3, 224, 224)
    return TrainingStep(VisionTransformer(24, 1024), (images,), (labels,), torch.nn.functional.cross_entropy)


MODELS: Mapping[str, tuple[Callable[[], TrainingStep], int]] = {
    "GPT 12": (_gpt, 64),
    "U-net": (lambda: unet.training_step(unet.Network(4, 64, 512, 32)), 32),
    "ViT-L": (_vit, 64),
    "BERT-large": (lambda: bert.training_step(bert.Network(24, 1024, 256, 64)), 64),
}
"""Makes the step, and the number of its samples."""
ROWS = (
    ("GPT 12", "4xv100", 0.4),
    ("GPT 12", "4xv100", 0.2),
    ("GPT 12", "2x4xv100", 0.5),
    ("GPT 12", "2x4xv100", 0.3),
    ("U-net", "4xv100", 0.2),
    ("ViT-L", "4xv100", 0.2),
    ("BERT-large", "4xv100", 0.2),
)
"""Models, clusters and shares of the memory of the first table."""


@dataclass(frozen=True)
class ShortMemory:
    """Plan steps where memory is short."""

    out: Path = Path("runs/short_memory")
    """folder for a file of each row, for the table and the picture"""
    models: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME")] = tuple(MODELS)
    """which"""
    counts: tuple[int, ...] = COUNTS
    """numbers of micro-batches of the first table"""
    between: tuple[float, ...] = (0.1, 0.5)
    """sizes of memory of the second table"""
    also: tuple[float, ...] = (0.0, 0.25, 0.75, 1.0)
    """further sizes of memory of the picture, of the first model"""
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
def ways(model: str, cluster: str, counts: tuple[int, ...], memory: float = ENOUGH) -> tuple[list[PlannedStep], float]:
    """The ways that `plan` finds, and the seconds that it takes; the graphs are captured before."""
    for count in counts:
        captured(model, count)
    begin = time.process_time()
    on, batch = with_memory(load_cluster(cluster), memory), MODELS[model][1]
    variants = Variants(lambda count, *_: captured(model, count), on, EFFICIENCY, batch)
    with collected_seldom():
        found, _ = _planned_ways(variants, counts, Runner())
    return found, time.process_time() - begin


def limited(row: Limit) -> dict[str, Any]:
    """Makespans of the best ways, and seconds."""
    wide, free_seconds = ways(row.model, row.cluster, row.counts)
    free = fastest(wide)
    assert free is not None
    memory = row.share * free.used
    found, seconds = ways(row.model, row.cluster, row.counts, memory)
    plan = fastest(found)
    none = fastest([step for step in found if step.plan is None or not step.plan.recomputed])
    problems = [problem_of(row.model, count, row.cluster, memory, True) for count in row.counts]
    everything = fastest(plain_ways({problem.setting: problem for problem in problems}, Runner()))
    made = {"none": none, "all": everything, "plan": plan}
    return {
        **{name: step and step.step_us / free.step_us for name, step in made.items()},
        **_random(lambda count: problem_of(row.model, count, row.cluster, memory), plan, free.step_us),
        "free": free.name,
        "way": plan.name if plan else "-",
        "recomputed": plan.recomputed if plan else "",
        "memory": memory,
        "seconds": seconds,
        "free seconds": free_seconds,
    }


def _random(problem_of: Callable[[int], PlacementProblem], step: PlannedStep | None, free_us: float) -> dict[str, Any]:
    """A way with as many blocks in random places: the mean makespan of those that fit, and their number."""
    if step is None or (plan := step.plan) is None or not plan.recomputed:
        return {"random": step and step.step_us / free_us, "draws": DRAWS if step else 0}
    problem = problem_of(step.micro_batches)
    costs = block_costs(problem)
    assert costs is not None
    stages, draw = pairwise((0, *plan.borders, plan.num_layers)), np.random.default_rng(0)
    whole = sorted({block for ends in stages for block in costs.within(*ends)})
    drawn = list[PlannedStep]()
    for _ in range(DRAWS):
        blocks = sorted(draw.choice(whole, len(plan.recomputed), replace=False).tolist())
        other = replace(plan, recomputed=tuple(costs.paths[block] for block in blocks), chunks=())
        if len(plan.devices) > 1:
            chunks, on = (
                by_chunks(problem, costs, other, problem.cluster.memory.astype(float))[0].chunks,
                other.step(problem),
            )
            drawn += in_order(problem, other, Runner(), order_of_ops(on, other, chunks, costs.joined(other)))
        elif len(plan.used) > 1:
            drawn.append(replicas_of(problem, other))
        else:
            drawn.append(one_device(problem, step.fullest, other.recomputed))
    times = [each.step_us / free_us for each in drawn if each.fits]
    return {"random": float(np.mean(times)) if times else None, "draws": len(times)}


class _AllBlocks(BlockCosts):
    """Costs for a search that recomputes all blocks, except those in which a stage begins."""

    def near(self, plan: Plan) -> Iterator[Plan]:
        """Yield plans with a border at the next cut."""
        for moved in super().near(plan):
            yield self.recomputing(moved, [len(self.paths)] * len(moved.devices))


def between(row: Between) -> dict[str, Any]:
    """Makespans of pipelines divided by that of the best one without a limit and without recomputation."""
    wide = problem_of(row.model, PIPELINE_COUNT, row.cluster, ENOUGH)
    free, least = fastest(_tried(wide)), _searched(wide, _costs(wide, "all"), row)
    assert free is not None
    assert least is not None
    memory = least.used + row.share * (free.used - least.used)
    problem = replace(wide, cluster=with_memory(wide.cluster, memory))
    searched = [_searched(problem, _costs(problem, blocks), row) for blocks in ("none", "all", "chosen")]
    made = {name: step and step.step_us / free.step_us for name, step in zip(BETWEEN[1:], searched, strict=True)}
    none, best = fastest(_tried(problem)), searched[-1]
    random = _random(lambda count: problem, best, free.step_us)
    how = {"memory": memory, "recomputed": best.recomputed if best else ""}
    return {BETWEEN[0]: none and none.step_us / free.step_us, **made, **random, **how}


def _tried(problem: PlacementProblem) -> list[PlannedStep]:
    """The best pipelines with one stage on each device, of those that are tried without a limit."""

    keep = partial((runner := _OneStageEach()).keeps, problem)
    plans = [each.plan for each in ranked_plans(problem, keep) if keep(each.plan)][:2]
    return [step for plan in plans for step in in_order(problem, plan, runner)]


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


class _OneStageEach(Runner):
    """Runs plans with one stage on each device."""

    def keeps(self, problem: PlacementProblem, plan: Plan) -> bool:
        return len(plan.devices) == len(plan.used) == problem.num_devices and not plan.interleaved


def _searched(problem: PlacementProblem, costs: BlockCosts, row: Between) -> PlannedStep | None:
    """The best pipeline with one stage on each device, of those whose borders and blocks are chosen by memory."""
    devices = tuple((device,) for device in range(problem.num_devices))
    starts = [costs.in_stages(make_plan(problem, devices))]
    for room in (1.0, 0.9):
        if (made := fitting_stages(problem, costs, devices, room)) is not None:
            starts.append(replace(make_plan(problem, devices, made[0]), recomputed=made[1]))
    if isinstance(costs, _AllBlocks):
        starts = [start and costs.recomputing(start, [len(costs.paths)] * len(devices)) for start in starts]
    return fastest([fastest_near(problem, costs, plan, Runner()) for plan in dict.fromkeys(starts) if plan])


def main(config: ShortMemory) -> None:
    """Plan what is missing, print the tables, write them and the picture."""
    rows = [Limit(*row, config.counts) for row in ROWS if row[0] in config.models]
    cells = [Between(*cell) for cell in product(config.models, config.between)]
    points = [Between(config.models[0], share) for share in sorted({*config.between, *config.also})]

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
    publish(config.out, "short_memory", lines, picture({point: second[point] for point in points}))


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
    columns = "none", "all", "random", "plan"
    head = ["model", "cluster", "share", "GB", *columns, "random: fit", "recomputed", "seconds", "without a limit"]
    lines = [head]
    for row, made in found.items():
        numbers = [f"{row.share:g}", f"{made['memory'] / 1e9:.1f}", *(_number(made[name]) for name in columns)]
        words = [f"{made['draws']} of {DRAWS}", made["recomputed"] or "-"]
        seconds = [f"{made[name]:.0f}" for name in ("seconds", "free seconds")]
        lines.append([row.model, row.cluster, *numbers, *words, *seconds])
    return lines


def between_table(found: Mapping[Between, Mapping[str, Any]]) -> list[list[str]]:
    """A line for each row of the second table."""
    lines = [["model", "memory", "GB", *SHOWN, "random: fit", "recomputed"]]
    for row, made in found.items():
        numbers = [_number(made[name]) for name in SHOWN]
        words = [f"{made['draws']} of {DRAWS}", made["recomputed"] or "-"]
        lines.append([row.model, f"{row.share:g}", f"{made['memory'] / 1e9:.1f}", *numbers, *words])
    return lines


def picture(found: Mapping[Between, Mapping[str, Any]]) -> Figure:
    """Makespan against memory."""
    figure, row = Figure(figsize=(5.0, 3.6), layout="constrained"), next(iter(found))
    axes, memory = figure.add_subplot(), [made["memory"] / 1e9 for made in found.values()]
    colors, dashes = ("C0", "C0", "C1", "C2", "black"), ("-", ":", "-", "--", "-")
    for name, color, dash in zip(SHOWN, colors, dashes, strict=True):
        times = [math.nan if made[name] is None else made[name] for made in found.values()]
        axes.plot(memory, times, color=color, linestyle=dash, marker=".", label=name)
    axes.set_title(f"{row.model} on {row.cluster}", loc="left", fontsize=10)
    axes.set_xlabel("memory of each device, GB")
    axes.set_ylabel("makespan / without a limit")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, fontsize=8)
    return figure


if __name__ == "__main__":
    command(main, ShortMemory, "short_memory", __doc__)
