"""What orders, plans and the policy are worth on steps in micro-batches, each beside what came before it.

python -m experiments.micro_batches [--clusters 2x4xv100 ...] [--counts 8 16] [--simulations 1000] [--seeds 2]

A decoder-only transformer of twelve layers is captured in micro-batches. Searches begin at the best placement by a rule
(METIS, ETF, HEFT, the expert's, one device) and keep to one static order of the ops; then plans, stages of contiguous
layers on replicas, are run under each order; `pipeline` is the best plan, orders made for it among them; then
`multilevel`, the search of `placeto` with a fresh network and `placeto` choose among orders and begin at rules and
plans. Makespans are divided by the work of a device if all shared it equally, which no placement is below.

Legend: M micro-batches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Annotated

import numpy as np
import torch
import tyro

from experiments.command import command
from experiments.guided import untrained
from experiments.tables import markdown, rule
from graphs.llama import Network, Size, training_step
from placeto.capture.trace import capture_training
from placeto.heuristics.local_search.annealing import annealing_of_parts
from placeto.heuristics.local_search.starts import CHEAP
from placeto.heuristics.plans import all_plans
from placeto.placers import load_placer
from placeto.problem.cluster import STATIC_ORDERS, load_cluster
from placeto.problem.graph import ComputationGraph
from placeto.problem.problem import PlacementProblem
from placeto.progress import ProgressBar
from placeto.simulator.evaluator import Evaluator

SIZE, LENGTH, BATCH = Size(12, 1024, 16, 16, 2816), 512, 32
UNTRAINED = "untrained"
Measure = Callable[[PlacementProblem, int, int], float]
"""Makespan in microseconds of a problem, at most so many simulations, a seed."""


@dataclass(frozen=True)
class MicroBatches:
    """Place steps in micro-batches."""

    clusters: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME")] = (
        "2x4xv100",
        "2x8xh100",
        "2xv100+2xp100",
        "4xv100",
    )
    """presets or files"""
    counts: tuple[int, ...] = (8, 16)
    """numbers of micro-batches"""
    layers: int = SIZE.layers
    """of the transformer"""
    placers: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME")] = (
        "pipeline",
        "multilevel",
        UNTRAINED,
        "placeto",
    )
    """names, or checkpoints, of those that choose orders; untrained: the search of placeto with a fresh network"""
    simulations: int = 1000
    """of each search"""
    seeds: int = 2
    """0, 1, ..."""


@cache
def transformer(layers: int, count: int) -> ComputationGraph:
    """The transformer's step in micro-batches."""
    size = Size(layers, SIZE.width, SIZE.heads, SIZE.key_heads, SIZE.inner)
    with torch.device("meta"):
        step = training_step(Network(size, LENGTH, BATCH))
    return capture_training(step.module, step.inputs, step.loss, targets=step.targets, micro_batches=count)


def by_rules(order: str, problem: PlacementProblem, simulations: int, seed: int) -> float:
    """A search from the best placement by a rule, all under one order."""
    evaluator = Evaluator(problem.under(order), None, simulations)
    for each in CHEAP:
        each(evaluator, seed)
    annealing_of_parts(evaluator, evaluator.best_groups[0], np.random.default_rng(seed))
    return evaluator.best_score


def by_plan(order: str, problem: PlacementProblem, simulations: int, seed: int) -> float:
    """The best plan under one order."""
    evaluator = Evaluator(problem.under(order))
    return min(evaluator.score_ops(plan.placement(problem)) for plan in all_plans(problem))


def by_placer(name: str, problem: PlacementProblem, simulations: int, seed: int) -> float:
    """A placer that chooses among orders, and begins at rules and plans."""
    placer = untrained(seed) if name == UNTRAINED else load_placer(name)
    return placer(problem, simulations=simulations, seed=seed).makespan_us


def rows(config: MicroBatches) -> dict[str, tuple[Measure, bool]]:
    """Lines of the table: how each is measured, and whether the seed matters."""
    found: dict[str, tuple[Measure, bool]] = {}
    for order in STATIC_ORDERS:
        found[f"search from rules, {order}"] = partial(by_rules, order), True
    for order in STATIC_ORDERS:
        found[f"best plan, {order}"] = partial(by_plan, order), False
    for name in config.placers:
        found[f"{name}, orders and plans"] = partial(by_placer, name), name != "pipeline"
    return found


def main(config: MicroBatches) -> None:
    """Print the table."""
    places = [(cluster, count) for cluster in config.clusters for count in config.counts]
    lines = rows(config)
    values = {name: [""] * len(places) for name in lines}
    with ProgressBar("placing", total=len(lines) * len(places)) as bar:
        for column, (cluster, count) in enumerate(places):
            problem = PlacementProblem(transformer(config.layers, count), load_cluster(cluster))
            work = float(problem.busy_us.min(axis=1).sum()) / float(shares(problem).sum())
            for name, (measure, seeded) in lines.items():
                seeds = range(config.seeds if seeded else 1)
                found = [measure(problem, config.simulations, seed) / work for seed in seeds]
                spread = f" ± {np.std(found):.3f}" if len(found) > 1 else ""
                values[name][column] = f"{np.mean(found):.3f}{spread}"
                bar.advance(note=f"{name}, {cluster}")
    print(
        f"Transformer of {config.layers} layers, width {SIZE.width}, {BATCH} x {LENGTH} words; searches with ", end=""
    )
    print(f"{config.simulations:,} simulations, {config.seeds} seeds, ± their deviation. Of the bound by work.\n")
    head = ["", *(f"{cluster}, M = {count}" for cluster, count in places)]
    table: list[Sequence[str]] = [head, rule(len(head)), *([name, *cells] for name, cells in values.items())]
    print(markdown(table))


def shares(problem: PlacementProblem) -> np.ndarray:
    """(D,) speed of each device on this graph, of the fastest's."""
    busy = problem.busy_us.sum(axis=0)
    return busy.min() / busy


if __name__ == "__main__":
    command(main, MicroBatches, "micro_batches", __doc__)
