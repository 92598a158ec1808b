"""How well does a policy place unseen graphs without a simulation?

python -m experiments.constructive [--iterations 800] [--out runs/constructive]

The constructive policy is trained on training graphs of a family, drawn beyond its train split, with some seeds, some
numbers of rounds of messages, and some shares of imitation: 0 means that it learns from rewards at the end alone. The
validation graphs choose the parameters. Then it places every test graph: by its most likely placement, which takes no
simulation, and by the best of that and 24 samples. Beside it stand the same network before training, random devices,
METIS, HEFT, ETF and the best cheap heuristic, which takes about 25 simulations. The best of 50 is the best of the 25
and that; `multilevel` has as many simulations. Run again after an interruption: what is finished is kept, and what has
begun goes on.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import tyro

from experiments.command import command
from experiments.harness import measure_cells, problem_of
from experiments.paper_learning import CHEAP, RANDOMLY, UNTRAINED, rival
from experiments.runs import Run, graphs_of, policies, train_runs
from experiments.tables import Table, machine, markdown, mean_and_spread, publish
from placeto.placers import load_placer
from placeto.policies.one_shot.constructive import ConstructiveConfig, ConstructivePolicy
from placeto.policies.one_shot.inputs import make_input
from placeto.problem.grouping import group_ops
from placeto.simulator.memory import penalised
from placeto.simulator.schedule import simulate
from placeto.training.checkpoint import load_checkpoint
from placeto.training.config import OneShotTrainConfig, default_config

TRAINED, RIVALS = "trained", ("metis", "heft", "etf")
BEST, BOTH, SEARCH = "best of 25", "best of 50", "multilevel"
Makespans = dict[str, np.ndarray]  # who -> (S, C) makespans relative to one device, of S seeds and C graphs


@dataclass(frozen=True)
class ConstructiveLearningConfig:
    """Train the constructive policy, and place unseen graphs."""

    out: Path = Path("runs/constructive")
    """folder for the training runs and the table"""
    families: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME")] = ("nmt", "ptb", "cifar10")
    """each on each cluster"""
    clusters: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME")] = ("4xv100",)
    """to place on"""
    count: int | None = None
    """only the first so many test graphs; all if not given"""
    rounds: tuple[int, ...] = (3, 0)
    """rounds of messages of the networks that are trained"""
    imitation: tuple[float, ...] = (0.5,)
    """shares of the training in which it imitates"""
    graphs: int = 128
    """training graphs"""
    iterations: int = 800
    """gradient steps of each training"""
    seeds: int = 2
    """of training"""
    processes: Annotated[int | None, tyro.conf.arg(aliases=["--workers"])] = 1
    """how many train at once"""


@dataclass(frozen=True)
class Cell:
    """A family on a cluster, a number of rounds, a share of imitation, and its training runs."""

    family: str
    cluster: str
    rounds: int
    imitation: float
    runs: tuple[Run, ...]  # one a seed
    graphs: tuple[str, ...]  # test graphs

    def __str__(self) -> str:
        return f"{self.family}, {self.cluster}, {self.rounds} rounds, imitation {self.imitation:g}"


def plan(config: ConstructiveLearningConfig) -> list[Cell]:
    """The rows of the table."""
    cells = []
    for family, cluster, rounds, imitation in product(
        config.families, config.clusters, config.rounds, config.imitation
    ):
        names, runs = graphs_of(family, config.graphs, config.count), []
        for seed in range(config.seeds):
            out = str(config.out / "runs" / f"{family}-{cluster}-{rounds}-{imitation:g}-{seed}")
            usual = default_config("constructive", out)
            assert isinstance(usual, OneShotTrainConfig)
            changed = replace(usual, iterations=config.iterations, seed=seed, validate_every=25,
                              policy=ConstructiveConfig(rounds=rounds),
                              learning=replace(usual.learning, imitation=imitation))  # fmt: skip
            runs.append(Run(changed, cluster, names["train"], names["validation"]))
        cells.append(Cell(family, cluster, rounds, imitation, tuple(runs), names["test"]))
    return cells


def makespan(graph: str, cluster: str, placement: np.ndarray) -> float:
    """Penalised makespan of a placement of ops, relative to one device."""
    problem = problem_of(graph, cluster)
    schedule = simulate(problem, placement)
    return float(penalised(schedule.makespan_us, schedule.overflow) / problem.single_device_us)


def place(policy: ConstructivePolicy, graph: str, cluster: str) -> tuple[float, float]:
    """Makespans of the most likely placement, and of the best of that and 24 samples."""
    described = make_input(problem_of(graph, cluster), policy.units)
    likely = policy.sample(described, 1, None).placement
    samples = policy.sample(described, 24, torch.Generator().manual_seed(0)).placement
    unit = described.unit.numpy()
    found = [makespan(graph, cluster, row[unit]) for row in torch.cat([likely, samples]).numpy()]
    return found[0], min(found)


@cache
def searched(graph: str, cluster: str) -> float:
    """Makespan of `multilevel` with 50 simulations, relative to one device."""
    problem = problem_of(graph, cluster)
    return float(load_placer(SEARCH)(problem, simulations=50).makespan_us / problem.single_device_us)


def milliseconds(policy: ConstructivePolicy, graphs: Sequence[str], cluster: str) -> float:
    """Core milliseconds for the most likely placement of a graph, and its makespan; grouping apart."""
    spent = 0.0
    for graph in graphs:
        problem = problem_of(graph, cluster)
        group_ops(problem)  # kept
        began = time.process_time()
        described = make_input.__wrapped__(problem, policy.units)
        simulate(problem, policy.sample(described, 1, None).placement[0].numpy()[described.unit.numpy()])
        spent += time.process_time() - began
    return 1e3 * spent / len(graphs)


@cache
def random_devices(graph: str, cluster: str) -> float:
    """Mean makespan of 16 placements of groups on uniformly random devices."""
    problem, random = problem_of(graph, cluster), np.random.default_rng(0)
    group = group_ops(problem).group
    drawn = random.integers(problem.num_devices, size=(16, group.max() + 1))
    return float(np.mean([makespan(graph, cluster, row[group]) for row in drawn]))


def measure(cell: Cell) -> tuple[Makespans, float]:
    """Of all test graphs: makespans of everyone; and the milliseconds of `milliseconds`."""
    found: dict[str, list[list[float]]] = {}
    for run in cell.runs:
        for who, policy in zip((UNTRAINED, TRAINED), policies(run), strict=True):
            placed = [place(policy, graph, cell.cluster) for graph in cell.graphs]
            for name, values in zip((who, f"{who}, {BEST}"), zip(*placed, strict=True), strict=True):
                found.setdefault(name, []).append(list(values))
    for who in (*RIVALS, CHEAP):
        found[who] = [[rival(who, graph, cell.cluster) for graph in cell.graphs]]
    found[SEARCH] = [[searched(graph, cell.cluster) for graph in cell.graphs]]
    found[BOTH] = [np.minimum(row, found[CHEAP][0]).tolist() for row in found[f"{TRAINED}, {BEST}"]]
    found[RANDOMLY] = [[random_devices(graph, cell.cluster) for graph in cell.graphs]]
    return {who: np.array(rows) for who, rows in found.items()}, milliseconds(policy, cell.graphs, cell.cluster)


def table(found: Mapping[Cell, tuple[Makespans, float]]) -> Table:
    """A line for each family, cluster and number of rounds.

    Means over graphs, ± the standard deviation of these over seeds; and by how many per cent placements of the trained
    policy are shorter, in the mean of its seeds and over graphs, ± the standard error over graphs.
    """
    who = [TRAINED, f"{TRAINED}, {BEST}", BOTH, UNTRAINED, f"{UNTRAINED}, {BEST}", RANDOMLY, *RIVALS, CHEAP, SEARCH]
    pairs = (TRAINED, "metis"), (TRAINED, CHEAP), (BOTH, SEARCH)
    head = ["", *who, *(f"{ours} shorter than {other}, %" for ours, other in pairs), "core ms a graph"]
    lines: list[Sequence[str]] = [head]
    for cell, (makespans, spent) in found.items():
        means = [mean_and_spread(makespans[name].mean(1).tolist(), ".3f") for name in who]
        shorter = [_shorter(makespans[ours], makespans[other]) for ours, other in pairs]
        lines.append([str(cell), *means, *shorter, f"{spent:.0f}"])
    return lines


def _shorter(ours: np.ndarray, others: np.ndarray) -> str:
    """By how many per cent our makespans (S, C) are shorter than others', ± the standard error over graphs.

    The differences are those of logarithms.
    """
    per_cent = 100 * np.log(others.mean(0) / ours.mean(0))
    error = per_cent.std(ddof=1) / len(per_cent) ** 0.5 if len(per_cent) > 1 else np.nan
    return f"{per_cent.mean():.1f} ± {error:.1f}"


def main(config: ConstructiveLearningConfig) -> None:
    """Train, place the test graphs, print the table and write it."""
    torch.set_num_threads(1)
    cells = plan(config)
    train_runs([run for cell in cells for run in cell.runs], config.processes)
    found = measure_cells(cells, measure, "placing test graphs")
    minutes = [load_checkpoint(run.checkpoint)["elapsed"] / 60.0 for cell in cells for run in cell.runs]
    ops = np.mean([problem_of(graph, cells[0].cluster).num_ops for graph in cells[0].graphs])
    lines = [
        f"{config.iterations:,} gradient steps on {config.graphs} graphs; {config.seeds} seeds; {len(cells[0].graphs)} "
        f"test graphs, those of {cells[0].family} with {ops:,.0f} ops in the mean; {machine()}. Makespans relative to "
        "one device, means over the test graphs; ± is the standard deviation over seeds, and in columns in per cent "
        "the standard error over graphs. Core milliseconds are those of the most likely placement and its simulation, "
        f"without grouping. A training took {min(minutes):.1f} to {max(minutes):.1f} minutes.",
        markdown(table(found)),
    ]
    publish(config.out, "constructive", lines, None)


if __name__ == "__main__":
    command(main, ConstructiveLearningConfig, "constructive", __doc__)
