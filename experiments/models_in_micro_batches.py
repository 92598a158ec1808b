"""What is left between the placements of steps in micro-batches and the bound, for many models on many machines.

python -m experiments.models_in_micro_batches [--simulations 600] [--seeds 1] [--models NAME ...] [--workers 1]

Each model's training step is captured in 1, 4, 8 and 16 micro-batches. A short search (`multilevel`, seed 0) places
each; the rest of a row is about the number with the least makespan. A search begins at rules (METIS, ETF, HEFT...)
under one order; then the best plan whose devices have one stage each, under the best static order; then `pipeline`;
then what `multilevel`, the search of `placeto` with a fresh network, and `placeto` make of it with equally many
simulations. Makespans are divided by the work of a device if all shared it equally, which no placement is below. A file
is kept for each row and seed: run again after an interruption.

Legend: M micro-batches; R rows; S seeds; N columns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import product
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import tyro
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, NullLocator
from torch import Tensor, nn

from experiments.command import command
from experiments.guided import untrained
from experiments.harness import measure_cells
from experiments.tables import Table, machine, markdown, mean_and_spread, publish
from graphs import bert, gnmt, llama, moe, recurrent, unet
from graphs.training_step import TrainingStep
from placeto.capture.trace import capture_training
from placeto.heuristics.local_search.multilevel import v_cycles
from placeto.heuristics.local_search.starts import CHEAP
from placeto.heuristics.pipelines.plans import all_plans
from placeto.placers import load_placer
from placeto.problem.cluster import STATIC_ORDERS, load_cluster
from placeto.problem.graph import ComputationGraph
from placeto.problem.problem import PlacementProblem
from placeto.simulator.evaluator import Evaluator

COUNTS = (1, 4, 8, 16)
SHORT = 6
"""The search that compares numbers of micro-batches has this part of the simulations."""
UNTRAINED = "untrained"
RULES, PLANS, SEARCHES = "search from rules", "plan, static order", ("multilevel", UNTRAINED, "placeto")
COLUMNS = (RULES, PLANS, "pipeline", *SEARCHES)


class VisionTransformer(nn.Module):
    """ViT (Dosovitskiy et al., ICLR 2021): patches, layers, a classifier of the first position."""

    def __init__(self, layers: int, width: int, patch: int = 16, pixels: int = 224) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.positions = nn.Parameter(torch.empty((pixels // patch) ** 2, width))
        layer = partial(nn.TransformerEncoderLayer, width, width // 64, 4 * width, 0.0, "gelu")
        self.layers = nn.Sequential(*(layer(batch_first=True, norm_first=True) for _ in range(layers)))
        self.norm, self.classifier = nn.LayerNorm(width), nn.Linear(width, 1000)

    def forward(self, images: Tensor) -> Tensor:
        """(B, 3, H, W) -> (B, 1000)."""
        x = self.patches(images).flatten(2).transpose(1, 2) + self.positions
        return self.classifier(self.norm(self.layers(x)[:, 0]))


class BatchFirst(nn.Module):
    """A translator of words (S, B) that takes them as (B, S)."""

    def __init__(self, translator: nn.Module) -> None:
        super().__init__()
        self.translator = translator

    def forward(self, source: Tensor, target: Tensor) -> list[Tensor]:
        """Words (B, S) and (B, T) -> logits of each block of target steps."""
        return self.translator(source.T, target.T)


def _gpt(layers: int, width: int) -> TrainingStep:
    size = llama.Size(layers, width, width // 64, width // 64, 4 * width)
    return llama.training_step(llama.Network(size, 512, 32))


def _vit() -> TrainingStep:
    labels = torch.zeros(64, dtype=torch.long)
    return TrainingStep(
        VisionTransformer(12, 768), (torch.empty(64, 3, 224, 224),), (labels,), nn.functional.cross_entropy
    )


def _gnmt() -> TrainingStep:
    network = gnmt.Network(4, steps=20, batch=128)
    words = torch.zeros(network.batch, network.steps, dtype=torch.long)

    def loss(outputs: list[Tensor], target: Tensor) -> Tensor:
        return recurrent.loss(outputs, target.T.flatten())

    return TrainingStep(BatchFirst(gnmt.Translator(network)), (words, words), (words,), loss)


MODELS: Mapping[str, Callable[[], TrainingStep]] = {
    "GPT 12": lambda: _gpt(12, 768),
    "GPT 24": lambda: _gpt(24, 1024),
    "Llama 1.1B": lambda: llama.training_step(llama.Network(llama.LLAMA_1B, 512, 16)),
    "BERT-large": lambda: bert.training_step(bert.Network(24, 1024, 128, 64)),
    "mixture of experts": lambda: moe.training_step(moe.Network(12, 1024, 8, 2, 512, 16)),
    "U-net": lambda: unet.training_step(unet.Network(4, 64, 512, 16)),
    "GNMT 4": _gnmt,
    "ViT": _vit,
}
CLUSTERS = ("4xv100", "2x4xv100", "2x8xh100", "2xv100+2xp100", "4xa100", "2xrtx3090+1xrtx4090")


@dataclass(frozen=True)
class ModelsInMicroBatches:
    """Place many models on many machines."""

    out: Path = Path("runs/models_in_micro_batches")
    """folder for a file of each row and seed, and for the table"""
    models: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME")] = tuple(MODELS)
    """which"""
    clusters: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME")] = CLUSTERS
    """presets or files"""
    simulations: int = 600
    """of each search"""
    seeds: int = 1
    """of the searches"""
    workers: int | None = None
    """processes; all cores if not given"""


@dataclass(frozen=True)
class Row:
    """A model on a cluster, with a seed of the searches."""

    model: str
    cluster: str
    simulations: int
    seed: int

    def __str__(self) -> str:
        return f"{self.model} on {self.cluster}"


@cache
def captured(model: str, count: int) -> ComputationGraph:
    """The model's step in micro-batches."""
    with torch.device("meta"):
        step = MODELS[model]()
    return capture_training(step.module, step.inputs, step.loss, targets=step.targets, micro_batches=count)


def placed(row: Row) -> dict[str, float]:
    """Microseconds by column; also M, the bound, and of the short search in each number of micro-batches."""
    cluster = load_cluster(row.cluster)
    problems = {count: PlacementProblem(captured(row.model, count), cluster) for count in COUNTS}
    first = {
        count: load_placer("multilevel")(problem, simulations=row.simulations // SHORT)
        for count, problem in problems.items()
    }
    best = min(first, key=lambda count: (not first[count].fits, first[count].makespan_us))
    problem = problems[best]
    busy = problem.busy_us.sum(axis=0)
    bound = float(problem.busy_us.min(axis=1).sum()) / float((busy.min() / busy).sum())
    found = {"M": best, "bound": bound, **{f"M = {count}": first[count].makespan_us for count in COUNTS}}
    rules = Evaluator(problem, None, row.simulations)
    for each in CHEAP:
        each(rules, row.seed)
    v_cycles(rules, np.random.default_rng(row.seed))
    found[RULES] = rules.best_score
    grids, plain = Evaluator(problem), [plan.placement(problem) for plan in all_plans(problem) if not plan.interleaved]
    for order in STATIC_ORDERS:
        grids.reorder(order)
        for placement in plain:
            grids.score_ops(placement)
    found[PLANS], found["pipeline"] = grids.best_score, load_placer("pipeline")(problem).makespan_us
    for name in SEARCHES:
        placer = untrained(row.seed) if name == UNTRAINED else load_placer(name)
        found[name] = placer(problem, simulations=row.simulations, seed=row.seed).makespan_us
    return found


def main(config: ModelsInMicroBatches) -> None:
    """Place what is missing, print the table and write it."""
    names = list(product(config.models, config.clusters))
    rows = [Row(*name, config.simulations, seed) for name in names for seed in range(config.seeds)]
    files = {row: config.out / f"{row.model}_{row.cluster}_{row.simulations}_{row.seed}.json" for row in rows}
    found = measure_cells(rows, placed, workers=config.workers, file=files.__getitem__)
    of_seeds = [[found[Row(*name, config.simulations, seed)] for seed in range(config.seeds)] for name in names]
    spread = f"seeds 0 to {config.seeds - 1}, means ± standard deviations" if config.seeds > 1 else "seed 0"
    lines = [
        f"Searches of {config.simulations} simulations, {spread}; {machine()}. Makespans / (work / devices). "
        "Of 1, 4, 8 and 16 micro-batches, M are best for `multilevel` with a sixth of the simulations.",
        markdown(table(names, of_seeds), 2),
    ]
    publish(config.out, "models_in_micro_batches", lines, picture(names, ratios(of_seeds)))


def ratios(found: Sequence[Sequence[Mapping[str, float]]]) -> np.ndarray:
    """(R, S, N) makespans / bound of what `placed` gives for R rows and S seeds."""
    return np.array([[[us[name] / us["bound"] for name in COLUMNS] for us in seeds] for seeds in found])


def picture(names: Sequence[tuple[str, str]], values: np.ndarray) -> Figure:
    """A panel for each cluster: how far above the bound each model is from column to column; their geometric mean.

    Args:
        names: R pairs of a model and a cluster.
        values: (R, S, N) makespans / bound.
    """
    clusters = list(dict.fromkeys(cluster for _, cluster in names))
    color = {model: f"C{number}" for number, model in enumerate(dict.fromkeys(model for model, _ in names))}
    columns = min(3, len(clusters))
    lines = -(-len(clusters) // columns)
    figure = Figure(figsize=(3.4 * columns + 2.0, 3.3 * lines + 0.5), layout="constrained")
    shown: dict[str, Line2D] = {}
    for number, cluster in enumerate(clusters, 1):
        axes = figure.add_subplot(lines, columns, number)
        own = np.log([values[row] for row, (_, on) in enumerate(names) if on == cluster]).mean(axis=1)
        for (model, _), line in zip([name for name in names if name[1] == cluster], own, strict=True):
            (shown[model],) = axes.plot(np.exp(line), color=color[model], linewidth=1.0, marker=".")
        (shown["geometric mean"],) = axes.plot(np.exp(own.mean(axis=0)), color="black", linewidth=2.5)
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 1.1, 1.2, 1.5, 2.0, 3.0, 5.0)))
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_locator(NullLocator())
        axes.set_xticks(range(len(COLUMNS)), COLUMNS, rotation=35, ha="right", fontsize=8)
        axes.set_title(cluster, loc="left", fontsize=10)
        axes.set_ylabel("makespan / bound")
        axes.grid(alpha=0.3)
    figure.legend(shown.values(), shown.keys(), loc="outside right upper", frameon=False, fontsize=8)
    title = "Simulated steps in micro-batches / a bound that no placement can beat, by placer; lower is better"
    figure.suptitle(title, x=0.01, ha="left", fontsize="medium")
    return figure


def table(names: Sequence[tuple[str, str]], found: Sequence[Sequence[Mapping[str, float]]]) -> Table:
    """A line for each model and cluster, then geometric means by cluster and of all.

    Args:
        names: R pairs of a model and a cluster.
        found: For each of them, what `placed` gives for each of S seeds.
    """
    head = ["model", "cluster", "M", "work / devices, ms", *COLUMNS]
    lines: list[Sequence[str]] = [head]
    values = ratios(found)

    def cells(of_seeds: np.ndarray) -> list[str]:
        """Of (S, N) ratios."""
        return [mean_and_spread(column if np.ptp(column) else column[:1], ".3f") for column in of_seeds.T]

    for (model, cluster), (us, *_), row in zip(names, found, values, strict=True):
        lines.append([model, cluster, f"{us['M']:.0f}", f"{us['bound'] / 1e3:.1f}", *cells(row)])
    for cluster in [*dict.fromkeys(cluster for _, cluster in names), "all"]:
        own = values[[cluster in (name, "all") for _, name in names]]
        lines.append(["geometric mean", cluster, "", "", *cells(np.exp(np.log(own).mean(axis=0)))])
    return lines


if __name__ == "__main__":
    command(main, ModelsInMicroBatches, "models_in_micro_batches", __doc__)
