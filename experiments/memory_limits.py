"""What is the policy worth in guided search if memory is short?

python -m experiments.memory_limits [--checkpoints placeto] [--shares 0.8 0.65] [--workers 1]

`multilevel` places each graph with 1,000 simulations. Then each device gets a share of the memory that its fullest
device needs, and guided search places the graph again, with a trained and with an untrained network, and so does
`multilevel`, which also gets 5,000 simulations. Per cent are of makespans, of placements that both fit: means over
graphs and seeds, with the standard error over graphs on clusters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Annotated

import numpy as np
import tyro

from experiments.command import command
from experiments.guided import untrained
from experiments.harness import measure_cells, problem_of
from experiments.tables import Table, machine, markdown, publish
from placeto.placers import load_placer
from placeto.problem.problem import PlacementProblem

MULTILEVEL, UNTRAINED = "multilevel", "untrained"
WITHOUT_LIMIT, MOST = 1000, 5000
"""Simulations of `multilevel`: to find the memory that is needed, and the most with the limit."""


@dataclass(frozen=True)
class MemoryLimits:
    """Place graphs on devices with little memory, guided and not."""

    out: Path = Path("runs/memory_limits")
    """folder for the table"""
    graphs: Annotated[tuple[str, ...], tyro.conf.arg(metavar="GRAPH")] = tuple(
        f"{family}:test:{index}" for family in ("cifar10", "nmt", "ptb") for index in range(3)
    )
    """files or family:split:index"""
    clusters: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME")] = ("4xv100",)
    """presets or files"""
    shares: tuple[float, ...] = (0.8, 0.65)
    """of the memory that is needed without a limit"""
    checkpoints: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME|PATH")] = ("placeto",)
    """of guided search"""
    simulations: tuple[int, ...] = (300, 1000)
    """budgets"""
    seeds: int = 2
    """0, 1, ... of all searches"""
    workers: int | None = 1
    """processes; None = all cores"""


@dataclass(frozen=True)
class Cell:
    """A graph on a cluster with little memory, and the placer, the budget and the seed that place it."""

    graph: str
    cluster: str
    share: float
    placer: str
    simulations: int
    seed: int

    def __str__(self) -> str:
        return f"{self.graph} on {self.cluster}, {self.share:g} of the memory, {self.placer}, seed {self.seed}"


@cache
def limited(graph: str, cluster: str, share: float) -> PlacementProblem:
    """The problem with a share of the memory that the fullest device needs."""
    problem = problem_of(graph, cluster)
    found = load_placer(MULTILEVEL)(problem, simulations=WITHOUT_LIMIT, seed=0)
    memory = int(share * found.schedule().peak_memory.max())
    devices = tuple(replace(device, memory=memory) for device in problem.cluster.devices)
    return replace(problem, cluster=replace(problem.cluster, devices=devices))


def measure(cell: Cell) -> float:
    """Microseconds of the placement; infinite if it doesn't fit."""
    placer = untrained(cell.seed) if cell.placer == UNTRAINED else load_placer(cell.placer)
    problem = limited(cell.graph, cell.cluster, cell.share)
    result = placer(problem, simulations=cell.simulations, seed=cell.seed)
    return float(result.makespan_us) if result.fits else float("inf")


def plan(config: MemoryLimits) -> list[Cell]:
    """What is measured; cells of one problem stand together."""
    searches = [*product((*config.checkpoints, UNTRAINED, MULTILEVEL), config.simulations), (MULTILEVEL, MOST)]
    of = product(config.graphs, config.clusters, config.shares, searches, range(config.seeds))
    return [Cell(graph, cluster, share, *search, seed) for graph, cluster, share, search, seed in of]


def shorter(us: dict[Cell, float], cells: Sequence[Cell], placer: str, simulations: int) -> str:
    """By how many per cent those of some cells are shorter than those of another placer."""
    gains = dict[tuple[str, str], list[float]]()
    for cell in cells:
        other = us[replace(cell, placer=placer, simulations=simulations)]
        if np.isfinite([us[cell], other]).all():
            gains.setdefault((cell.graph, cell.cluster), []).append(100.0 * (1.0 - us[cell] / other))
    means = [np.mean(each) for each in gains.values()]
    error = np.std(means, ddof=1) / len(means) ** 0.5 if len(means) > 1 else np.nan
    return f"{np.mean(means):+.1f} ± {error:.1f}" if means else "-"


def table(us: dict[Cell, float], config: MemoryLimits) -> Table:
    """A line for each share of the memory and budget, and for all shares together."""
    most = f"multilevel with {MOST:,}"
    head = ["memory, simulations, policy", "shorter than multilevel, %", "than untrained, %", f"than {most}, %"]
    lines: list[Sequence[str]] = [[*head, "fits", "untrained", "multilevel", most]]
    parts = {**{f"{share:g}": (share,) for share in config.shares}, "all": config.shares}
    for (name, shares), simulations, checkpoint in product(parts.items(), config.simulations, config.checkpoints):

        def of(placer: str, budget: int = simulations, shares: Sequence[float] = shares) -> list[Cell]:
            return [c for c in us if (c.placer, c.simulations) == (placer, budget) and c.share in shares]

        cells = of(checkpoint)
        every = cells, of(UNTRAINED), of(MULTILEVEL), of(MULTILEVEL, MOST)
        fits = [f"{sum(us[cell] < float('inf') for cell in each)} of {len(each)}" for each in every]
        others = ((MULTILEVEL, simulations), (UNTRAINED, simulations), (MULTILEVEL, MOST))
        gains = [shorter(us, cells, *other) for other in others]
        lines.append([f"{name}, {simulations:,}, {Path(checkpoint).name}", *gains, *fits])
    return lines


def main(config: MemoryLimits) -> None:
    """Place, print the table and write it."""
    us = measure_cells(plan(config), measure, workers=config.workers)
    lines = [
        f"{len(config.graphs)} graphs on {', '.join(config.clusters)}, {config.seeds} seeds; {machine()}. Per cent are "
        "means over graphs and seeds of placements that both fit, ± the standard error over graphs on clusters.",
        markdown(table(us, config), words=1),
    ]
    publish(config.out, "memory_limits", lines, None)


if __name__ == "__main__":
    command(main, MemoryLimits, "memory_limits", __doc__)
