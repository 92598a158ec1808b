"""How good the best placement is at any time of a search, guided and not.

python -m experiments.anytime [--out runs/anytime]

The guided placer and others place the same graphs with the same seeds within one budget of seconds, one after the
other; curves are of the best so far, means over seeds. The table reads them at some times. Seconds mean most with
nothing else at work. Run again after an interruption: what is finished is kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Annotated

import numpy as np
import tyro

from experiments.command import command
from experiments.equal_budgets import GUIDED
from experiments.panels import panel_figure
from experiments.rows import kept_rows, place_key, problem_of, result_row
from experiments.tables import Table, cells, machine, markdown, publish, rule
from placeto.evaluation.summary import Row, mean_curves
from placeto.placers import load_placer, warm_up
from placeto.problem.problem import PlacementProblem


@dataclass(frozen=True)
class AnytimeConfig:
    """Place graphs within a time, and draw how they got there."""

    out: Path = Path("runs/anytime")
    """folder for the rows, the table and the picture"""
    graphs: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME")] = (
        "bert:test:0",
        "inception_v3:test:0",
        "nasnet:test:0",
        "gnmt-2:test:0",
        "llama:test:0",
        "gnmt-4:test:0",
    )
    """to place, a panel for each"""
    cluster: str = "4xv100"
    """to place on"""
    checkpoint: str = "placeto"
    """of the guided placer: a name of what comes with the package, or a path"""
    against: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME")] = ("multilevel", "anneal")
    """the other placers"""
    seconds: float = 10.0
    """budget"""
    times: tuple[float, ...] = (0.3, 1.0, 3.0, 10.0)
    """columns of the table, seconds"""
    seeds: int = 3
    """of all placers"""


def anytime_rows(config: AnytimeConfig) -> list[Row]:
    """A row with its history for each graph, placer and seed."""
    placers = {GUIDED: load_placer(config.checkpoint), **{name: load_placer(name) for name in config.against}}

    def make(graph: str, label: str, seed: int) -> Row:
        kept = problem_of(graph, config.cluster)
        warm_up(placers[label], kept, None, config.seconds)
        problem = PlacementProblem(kept.graph, kept.cluster, kept.costs)  # each placer groups its ops itself
        result = placers[label](problem, seconds=config.seconds, seed=seed)
        return result_row(graph, config.cluster, label, seed, result)

    wanted = {}
    for graph, label, seed in product(config.graphs, placers, range(config.seeds)):
        checkpoint = config.checkpoint if label == GUIDED else ""
        key = f"{place_key(graph, config.cluster)} {label} {checkpoint} {config.seconds:g} {seed}"
        wanted[key] = lambda of=(graph, label, seed): make(*of)
    return kept_rows(config.out / "rows.json", wanted, "placing")


def best_at(row: Row, seconds: float) -> float:
    """Makespan / one device of a row's best placement so far; nan where there is none.

    >>> row = {"history": [[1, 0.5, 80.0], [2, 1.5, 60.0]], "makespan_us": 60.0, "relative": 0.6}
    >>> best_at(row, 1.0), best_at(row, 2.0), best_at(row, 0.1)
    (0.8, 0.6, nan)
    """
    before = [us for _, when, us in row["history"] if when <= seconds]
    return float(before[-1] * row["relative"] / row["makespan_us"]) if before else float("nan")


def table(rows: Sequence[Row], times: Sequence[float]) -> Table:
    """A line for each graph and placer: makespan / one device after some times, and simulations in all."""
    head = ["graph", "placer", *(f"{time:g} s" for time in times), "simulations"]
    lines: list[Sequence[str]] = [head, ["---", *rule(len(head) - 1)]]
    for (graph, placer), of in cells(rows, "graph", "placer").items():
        means = [np.mean([best_at(row, time) for row in of]) for time in times]
        count = np.mean([row["simulations"] for row in of])
        lines.append([graph, placer, *("-" if np.isnan(mean) else f"{mean:.4f}" for mean in means), f"{count:,.0f}"])
    return lines


def main(config: AnytimeConfig) -> None:
    """Place, print the table and write it with its picture.

    Raises:
        SystemExit: there is no graph, no seed, or no time.
    """
    if not config.graphs or config.seeds < 1 or not config.seconds > 0:
        raise SystemExit("error: give at least one graph, one seed, and seconds above 0")
    config.out.mkdir(parents=True, exist_ok=True)
    rows = anytime_rows(config)
    panels = {graph: mean_curves(of, "seconds") for (graph,), of in cells(rows, "graph").items()}
    title = f"Makespan of the best placement after so many seconds of a search, on {config.cluster}"
    figure = panel_figure(panels, "seconds of the search", "makespan / one device", title, log=True)
    lines = [
        f"{config.cluster}, {config.seconds:g} s, {config.seeds} seed{'s' if config.seeds > 1 else ''}; {machine()}. "
        "Mean makespan of the best placement so far, of one device; - where a seed has none yet.",
        markdown(table(rows, config.times)),
    ]
    publish(config.out, "anytime", lines, figure)


if __name__ == "__main__":
    command(main, AnytimeConfig, "anytime", __doc__)
