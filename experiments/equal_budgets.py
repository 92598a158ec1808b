"""Policy-guided search against searches without it, at equal budgets of simulations and of seconds.

python -m experiments.equal_budgets [--out runs/equal_budgets]

The guided placer (what comes with the package, or a checkpoint for each seed) and others place the same graphs with the
same seeds within each budget. Differences are of makespans, in per cent of the other's, paired: their mean over seeds
for each graph, then mean and standard error over graphs. One pass of the policy stands beside the best cheap heuristic
of each graph. A first table sums up all cells, which are the families on the clusters. Run again after an
interruption: what is finished is kept.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Annotated

import numpy as np
import tyro
from matplotlib.figure import Figure

from experiments.command import command
from experiments.harness import Cell, measure_cells
from experiments.panels import panel_figure
from experiments.tables import Table, by_columns, machine, markdown, publish
from placeto.evaluation.comparison import PlacerSpec, Row, evaluate, save_rows
from placeto.heuristics.local_search.starts import best_cheap
from placeto.placers import load_placer, load_split
from placeto.plumbing.progress import ProgressBar
from placeto.problem.cluster import load_cluster
from placeto.problem.grouping import group_ops
from placeto.simulator.evaluator import Evaluator

CHEAP = "best cheap heuristic"
PASS = "one pass"
GUIDED = "guided"
_PLACED = "family", "graph", "cluster"  # columns that say what was placed on what


@dataclass(frozen=True)
class BudgetConfig:
    """Place graphs within budgets, guided and not."""

    out: Path = Path("runs/equal_budgets")
    """folder for the rows, the table and the picture"""
    families: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME")] = ("cifar10", "nmt", "ptb")
    """whose graphs"""
    split: str = "test"
    """of the families"""
    count: int = 16
    """only the first so many graphs of each"""
    clusters: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME")] = ("2xv100", "4xv100")
    """to place on"""
    checkpoints: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME|PATH")] = ("placeto",)
    """of the guided placer, names of what comes with the package or paths: one for each seed, in turn"""
    against: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME")] = ("anneal", "multilevel")
    """the other placers"""
    simulations: tuple[int, ...] = (300, 1000, 3000, 10000)
    """budgets"""
    seconds: tuple[float, ...] = (0.3, 1.0, 3.0)
    """budgets"""
    seeds: int = 3
    """of all placers"""
    processes: int | None = None
    """how many work at once; all cores if not given. Seconds mean most with one."""


@dataclass(frozen=True)
class Difference:
    """How much shorter the guided placer's makespans are, in per cent of the other's."""

    mean: float
    error: float  # standard error, graphs being the sample, of means over seeds; nan with one graph

    def __str__(self) -> str:
        return f"{self.mean:+.2f}" + ("" if math.isnan(self.error) else f" ± {self.error:.2f}")


def specs(config: BudgetConfig, seed: int) -> list[PlacerSpec]:
    """All placers with each budget, and one pass of the policy."""
    checkpoint = config.checkpoints[seed % len(config.checkpoints)]
    found = [PlacerSpec(PASS, checkpoint)]
    for label, placer in ((GUIDED, checkpoint), *((name, name) for name in config.against)):
        found += [PlacerSpec(f"{label}@{count}", placer, simulations=count) for count in config.simulations]
        found += [PlacerSpec(f"{label}@{length:g}s", placer, seconds=length) for length in config.seconds]
    return found


def budgets(config: BudgetConfig) -> list[str]:
    """What stands behind the @ of the labels."""
    return [*map(str, config.simulations), *(f"{length:g}s" for length in config.seconds)]


def difference(ours: Sequence[Row], theirs: Sequence[Row]) -> Difference:
    """Rows of the same graphs and seeds, paired; or of the same graphs, where theirs have one seed.

    >>> rows = [[{"graph": g, "seed": 0, "makespan_us": us} for g, us in zip("ab", of)] for of in ((9, 8), (10, 10))]
    >>> difference(*rows)
    Difference(mean=15.0, error=5.0)
    """
    gains = [float(np.mean(of)) for of in _gains(ours, theirs)]
    error = float(np.std(gains, ddof=1)) / math.sqrt(len(gains)) if len(gains) > 1 else math.nan
    return Difference(float(np.mean(gains)), error)


def pass_gain(rows: Sequence[Row]) -> Difference:
    """One pass against the best cheap heuristic."""
    return difference(*([row for row in rows if row["placer"] == placer] for placer in (PASS, CHEAP)))


def table(rows: Sequence[Row], config: BudgetConfig) -> Table:
    """A line for each family, cluster and budget."""
    head = ["graphs, cluster", "budget", GUIDED, *config.against]
    head += [f"faster than {name}, %" for name in config.against] + ["s", *(f"s, {name}" for name in config.against)]
    lines: list[Sequence[str]] = [head]
    for (family, cluster), own in by_columns(rows, "family", "cluster").items():
        by_label = {label: of for (label,), of in by_columns(own, "placer").items()}
        name, blank = f"{family}, {cluster}", [""] * (len(config.against) - 1)
        both = [by_label[PASS], by_label[CHEAP]]
        shown = [*_means(both, "relative", 4), *blank, str(pass_gain(own)), *blank, *_means(both, "seconds", 2), *blank]
        lines.append([name, "one pass / best cheap heuristic", *shown])
        for budget in budgets(config):
            every = [by_label[f"{label}@{budget}"] for label in (GUIDED, *config.against)]
            gains = [str(difference(every[0], theirs)) for theirs in every[1:]]
            lines.append([name, budget, *_means(every, "relative", 4), *gains, *_means(every, "seconds", 2)])
    return lines


def overall(rows: Sequence[Row], config: BudgetConfig) -> Table:
    """A line for each budget: mean over the cells, the worst of them, how many are behind, and how far one could go.

    A cell is behind where its mean over graphs and seeds is by more than its standard error below 0. Graphs are ahead
    or behind by more than 1 % in the mean over seeds. The bound is what the best of all rows would be faster by.
    """
    head = ["budget", "than", "faster by, mean over cells, %", "the worst cell, %", "which", "cells behind"]
    head += ["graphs ahead / within 1 % / behind", "bound, %"]
    lines: list[Sequence[str]] = [head]
    by_cell = {
        f"{family}, {cluster}": {label: of for (label,), of in by_columns(own, "placer").items()}
        for (family, cluster), own in by_columns(rows, "family", "cluster").items()
    }
    best = {key: min(row["makespan_us"] for row in of) for key, of in by_columns(rows, *_PLACED).items()}
    pairs = [(PASS, CHEAP, "one pass", "best cheap heuristic")]
    for budget, name in product(budgets(config), config.against):
        pairs.append((f"{GUIDED}@{budget}", f"{name}@{budget}", budget, name))
    for ours, theirs, budget, name in pairs:
        found = {cell: _cell_gain(of[ours], of[theirs]) for cell, of in by_cell.items()}
        worst = min(found, key=lambda cell: found[cell].mean)
        behind = sum(gain.mean < -gain.error for gain in found.values())
        mean = f"{np.mean([gain.mean for gain in found.values()]):+.2f}"
        of_graphs = np.array([np.mean(of) for cell in by_cell.values() for of in _gains(cell[ours], cell[theirs])])
        counts = (of_graphs > 1.0).sum(), (abs(of_graphs) <= 1.0).sum(), (of_graphs < -1.0).sum()
        bound = np.mean([_bound(of[theirs], best) for of in by_cell.values()])
        line = [budget, name, mean, str(found[worst]), worst, f"{behind} of {len(found)}"]
        lines.append([*line, " / ".join(map(str, counts)), f"{bound:+.2f}"])
    return lines


def _cell_gain(ours: Sequence[Row], theirs: Sequence[Row]) -> Difference:
    """As `difference`, but the error is over all pairs, and 0 of one."""
    gains = np.concatenate(_gains(ours, theirs))
    error = float(np.std(gains, ddof=1)) / math.sqrt(len(gains)) if len(gains) > 1 else 0.0
    return Difference(float(np.mean(gains)), error)


def _gains(ours: Sequence[Row], theirs: Sequence[Row]) -> list[list[float]]:
    """Of each graph, for each seed: how much shorter our makespan is, in per cent of theirs."""
    their_us = {(row["graph"], row["seed"]): row["makespan_us"] for row in theirs}
    found = []
    for (graph,), of in by_columns(ours, "graph").items():
        other = [their_us.get((graph, row["seed"]), their_us.get((graph, 0), math.nan)) for row in of]
        found.append([100.0 * (us - row["makespan_us"]) / us for us, row in zip(other, of, strict=True) if us])
    return found


def _bound(theirs: Sequence[Row], best_us: Mapping[tuple[str, ...], float]) -> float:
    """How much shorter the best makespans of graphs on clusters are, in per cent of theirs, in the mean."""
    best = [best_us[tuple(row[column] for column in _PLACED)] for row in theirs]
    return float(np.mean([100.0 * (1.0 - us / row["makespan_us"]) for us, row in zip(best, theirs, strict=True)]))


def _means(of: Sequence[Sequence[Row]], column: str, digits: int) -> list[str]:
    return [f"{np.mean([row[column] for row in rows]):.{digits}f}" for rows in of]


def place(config: BudgetConfig) -> list[Row]:
    """All rows, each with its family."""
    graphs = {family: load_split(family, config.split, config.count) for family in config.families}
    total = len(config.clusters) * sum(map(len, graphs.values())) * len(specs(config, 0)) * config.seeds
    rows: list[Row] = []
    with ProgressBar("placing", total=total) as bar:
        for family, name, seed in product(config.families, config.clusters, range(config.seeds)):
            found = evaluate(
                graphs[family],
                load_cluster(name),
                specs(config, seed),
                (seed,),
                out=config.out / f"{family}.json",
                processes=config.processes,
                report=bar.after(len(rows)),
            )
            rows += [row | {"family": family} for row in found]
    for family, name in product(config.families, config.clusters):
        heuristics = [Cell(graph, name, CHEAP, 0) for graph in graphs[family]]
        rows += [row | {"family": family} for row in measure_cells(heuristics, cheap_row, "heuristics").values()]
    return rows


def cheap_row(cell: Cell) -> Row:
    """The placement of the graph's best cheap heuristic, with what trying all of them takes."""
    problem = cell.problem
    evaluator = Evaluator(problem, group_ops(problem))
    best_cheap(evaluator)
    result = evaluator.result()
    return {
        **asdict(cell),
        "lower_bound_us": float(problem.lower_bound_us),
        "makespan_us": float(result.makespan_us),
        "relative": float(result.makespan_us / problem.single_device_us),
        "fits": bool(result.fits),
        "simulations": int(result.simulations),
        "seconds": float(result.seconds),
    }


def budget_figure(rows: Sequence[Row], config: BudgetConfig) -> Figure:
    """Mean makespans against budgets, a panel for each family and cluster: of simulations, or of seconds alone."""
    budgets = [(f"{count}", float(count)) for count in config.simulations]
    budgets = budgets or [(f"{length:g}s", length) for length in config.seconds]
    panels, levels = {}, {}
    for (family, cluster), own in by_columns(rows, "family", "cluster").items():
        by_label = {
            label: np.mean([row["relative"] for row in of]) for (label,), of in by_columns(own, "placer").items()
        }
        panels[f"{family} on {cluster}"] = {
            label: [(size, by_label[f"{label}@{budget}"]) for budget, size in budgets]
            for label in (GUIDED, *config.against)
        }
        levels[f"{family} on {cluster}"] = {name: float(by_label[name]) for name in (PASS, CHEAP)}
    x_label = "budget, simulations" if config.simulations else "budget, seconds"
    title = "Makespans of searches at equal budgets; lower is better"
    return panel_figure(panels, x_label, "makespan / one device", title, log=True, steps=False, levels=levels)


def main(config: BudgetConfig) -> None:
    """Place, print the table and write it with its picture.

    Raises:
        SystemExit: there is no budget, or no checkpoint.
    """
    if not config.simulations and not config.seconds:
        raise SystemExit("error: give a budget of simulations or of seconds")
    if not config.checkpoints:
        raise SystemExit("error: give a checkpoint")
    if not config.against:
        raise SystemExit("error: give a placer to compare with")
    for name in (*config.checkpoints, *config.against):
        load_placer(name)  # refused now rather than in a worker
    config.out.mkdir(parents=True, exist_ok=True)
    rows = place(config)
    save_rows(rows, config.out / "rows.json")
    figure = budget_figure(rows, config)
    lines = [
        f"The first {config.count} {config.split} graphs of each family, "
        f"{config.seeds} seed{'s' if config.seeds > 1 else ''}; {machine()}. Makespans "
        "are relative to one device; ± is the standard error over graphs.",
        markdown(overall(rows, config)),
        markdown(table(rows, config)),
    ]
    publish(config.out, "equal_budgets", lines, figure)


if __name__ == "__main__":
    command(main, BudgetConfig, "equal_budgets", __doc__)
