"""How many placements the next per cent takes: a trained policy fine-tuned on one graph, and one trained from scratch.

python -m experiments.fine_tuning [--out runs/fine_tuning]

The target of each graph is a makespan so many per cent below that of one pass of the checkpoint, which has not seen
the graph. Fine-tuning begins with the checkpoint's parameters, training from scratch with fresh ones; both learn from
episodes on this graph alone, which begin at the cheap heuristics' placements. Counted are all placements simulated
while training, those for labels included, at the end of the iteration that met the target. Guided search and annealing
show what search needs, heuristics included. Run again after an interruption: what is finished is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Annotated

import numpy as np
import tyro

from experiments.command import command
from experiments.runs import Run, kept_rows, place_key, problem_of, result_row, train_runs, training_row
from experiments.sample_efficiency import SCRATCH, first_reach
from experiments.tables import Table, cells, machine, markdown, publish, rule
from placeto.evaluation.comparison import Row, save_rows
from placeto.evaluation.figures import panel_figure
from placeto.evaluation.summary import mean_curves
from placeto.placers import load_placer
from placeto.training.checkpoint import checkpoint_path, load_checkpoint
from placeto.training.config import TrainConfig
from placeto.training.trainer import pretrained_config

PASS = "one pass of the checkpoint"
TUNED, FRESH = "fine-tuned", "from scratch"
GUIDED = "guided search"


@dataclass(frozen=True)
class FineTuningConfig:
    """Train on single unseen graphs, from a checkpoint and from scratch."""

    out: Path = Path("runs/fine_tuning")
    """folder for the training runs, the rows, the table and the picture"""
    families: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME")] = ("cifar10", "nmt", "ptb")
    """whose graphs"""
    count: int = 4
    """only the first so many test graphs of each"""
    cluster: str = "4xv100"
    """to place on"""
    checkpoint: str = "pretrained"
    """to begin with: what comes with the package, or a path"""
    gain: float = 1.0
    """per cent below the makespan of one pass"""
    simulations: int = 3000
    """placements of each run"""
    seeds: int = 3
    """of each run and search"""
    processes: int | None = None
    """how many runs train at once; all cores if not given"""


def plan(config: FineTuningConfig) -> dict[Run, str]:
    """The training runs and the label of each.

    Raises:
        SystemExit: the checkpoint is of another placer.
    """
    learning, runs = replace(SCRATCH, starts="heuristics"), {}
    tuned = pretrained_config(config.checkpoint, load_checkpoint(config.checkpoint), "")
    if not isinstance(tuned, TrainConfig):
        raise SystemExit(f"error: {config.checkpoint} holds the placer {tuned.placer}, not placeto")
    ways = {
        TUNED: (replace(tuned, learning=replace(learning, reinforcement=1.0)), config.checkpoint),
        FRESH: (TrainConfig("", learning=learning), None),
    }
    for graph in graphs(config):
        for seed in range(config.seeds):
            for label, (way, initial) in ways.items():
                out = str(config.out / "runs" / f"{graph.replace(':', '-')}-{label.replace(' ', '-')}-{seed}")
                limited = replace(way, out=out, simulations=config.simulations, seed=seed)
                training = replace(limited, validate_every=10**9, save_every=20)
                runs[Run(training, config.cluster, (graph,), initial=initial)] = label
    return runs


def graphs(config: FineTuningConfig) -> list[str]:
    """Names of the test graphs."""
    return [f"{family}:test:{index}" for family in config.families for index in range(config.count)]


def searched(config: FineTuningConfig) -> dict[str, Callable[[], Row]]:
    """By key, how to make the row of the pass and of each search; each search of each seed."""
    path = checkpoint_path(config.checkpoint)
    content = sha256(path.read_bytes()).hexdigest()[:12]
    wanted: dict[str, Callable[[], Row]] = {}
    for graph in graphs(config):
        where = place_key(graph, config.cluster)
        wanted[f"{PASS} {content} {where}"] = partial(_row, graph, config.cluster, PASS, str(path), None, 0)
        for seed in range(config.seeds):
            for label, placer in ((GUIDED, str(path)), ("anneal", "anneal")):
                kind = f"{label} {content}" if label == GUIDED else label
                make = partial(_row, graph, config.cluster, label, placer, config.simulations, seed)
                wanted[f"{kind} {where} {config.simulations} {seed}"] = make
    return wanted


def _row(graph: str, cluster: str, label: str, placer: str, simulations: int | None, seed: int) -> Row:
    result = load_placer(placer)(problem_of(graph, cluster), simulations=simulations, seed=seed)
    return result_row(graph, cluster, label, seed, result)


def placements(rows: Sequence[Row], label: str, gain: float) -> list[float]:
    """Of each row of a label, how many placements it took to be so many per cent below the pass; inf = never.

    >>> head = {"graph": "a", "placer": PASS, "makespan_us": 100.0}
    >>> tuned = {"graph": "a", "placer": TUNED, "history": [[1, 0.1, 120.0], [40, 0.2, 99.0]]}
    >>> placements([head, tuned], TUNED, 1.0), placements([head, tuned], TUNED, 2.0)
    ([40.0], [inf])
    """
    of_pass = {row["graph"]: row["makespan_us"] for row in rows if row["placer"] == PASS}
    found = []
    for row in rows:
        if row["placer"] == label:
            reach = first_reach(row, of_pass[row["graph"]] * (1.0 - gain / 100.0))
            found.append(float("inf") if reach is None else float(reach[0]))
    return found


def table(rows: Sequence[Row], gain: float) -> Table:
    """A line for each family and way, the pass first."""
    head = ["graphs, way", "/ one device", f"placements to gain {gain:g} %, median", "reached", "simulated", "s"]
    lines: list[Sequence[str]] = [head, rule(len(head))]
    for (family,), own in cells(rows, "family").items():
        for (label,), of in cells(own, "placer").items():
            relative, simulated, seconds = (
                float(np.mean([row[column] for row in of])) for column in ("relative", "simulations", "seconds")
            )
            reached = ["", ""]
            if label != PASS:
                counts = placements(own, label, gain)
                middle, number = np.median(counts), np.isfinite(counts).sum()
                reached = [f"{middle:.0f}" if np.isfinite(middle) else "not reached", f"{number}/{len(counts)}"]
            spent = f"{simulated:.0f}", f"{seconds:.1f}"
            lines.append([f"{family}, {label}", f"{relative:.4f}", *reached, *spent])
    return lines


def main(config: FineTuningConfig) -> None:
    """Search, train, print the table and write it with its picture."""
    config.out.mkdir(parents=True, exist_ok=True)
    runs = plan(config)
    rows = kept_rows(config.out / "searches.json", searched(config), "searching")
    train_runs(list(runs), config.processes, "training")
    rows += [training_row(run, label) for run, label in runs.items()]
    rows = [row | {"family": row["graph"].partition(":")[0]} for row in rows]
    save_rows(rows, config.out / "rows.json")
    panels, levels = {}, {}
    for (family,), own in cells(rows, "family").items():
        title = f"{family} on {config.cluster}"
        panels[title] = mean_curves([row for row in own if row["placer"] != PASS], "simulations")
        levels[title] = {PASS: float(np.mean([row["relative"] for row in own if row["placer"] == PASS]))}
    lines = [
        f"The first {config.count} test graphs of each family on {config.cluster}, {config.seeds} seeds, "
        f"{config.simulations} placements a run; {machine()}. Makespans are relative to one device; medians over "
        "graphs and seeds count those that never reach the target as later than all others.",
        markdown(table(rows, config.gain)),
    ]
    figure = panel_figure(
        panels, "placements", "best makespan / one device", "One unseen graph", log=True, levels=levels
    )
    publish(config.out, "fine_tuning", lines, figure)


if __name__ == "__main__":
    command(main, FineTuningConfig, "fine_tuning", __doc__)
