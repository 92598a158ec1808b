"""What message passing is worth: the recipe of the package's checkpoint with messages, and without.

python -m experiments.messages [--out runs/messages]

The recipe is followed with each kind and several seeds, the same graphs and as many iterations (``KIND/seed-N/``, as
`experiments.training_cost` leaves them, too). Each policy places the same test graphs in one pass and within budgets of
simulations. Gains are of makespans, in per cent of the best cheap heuristic's (one pass) or of multilevel annealing's
with as many simulations, over all graphs and clusters. Run again after an interruption: what is finished is kept.

Legend: S seeds, C graphs on clusters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated

import numpy as np
import tyro
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from experiments.command import command
from experiments.equal_budgets import GUIDED, PASS, BudgetConfig, place
from experiments.recipes import CHECKPOINT, Recipe
from experiments.recipes import main as follow
from experiments.runs import CHEAP
from experiments.tables import Table, machine, markdown, mean_and_spread, publish, rule
from placeto.evaluation.summary import Row
from placeto.training.checkpoint import load_checkpoint

AGAINST = "multilevel"
KINDS: dict[str, dict[str, object]] = {"two rounds": {}, "none": {"rounds": 0}}
"""Name -> settings of the policy that differ from the recipe's."""

Gains = np.ndarray
"""(S, C) float64, per cent."""


@dataclass(frozen=True)
class MessagesConfig:
    """Train with each kind of messages, and compare."""

    out: Path = Path("runs/messages")
    """folder for the training runs, the rows, the table and the picture"""
    kinds: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME")] = tuple(KINDS)
    """which; the others are compared with the first"""
    families: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME")] = ("cifar10", "nmt", "ptb")
    """whose test graphs are placed"""
    count: int = 8
    """only the first so many graphs of each"""
    clusters: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME")] = ("4xv100", "2xv100", "2xv100+2xp100")
    """to place on"""
    simulations: tuple[int, ...] = (300, 1000)
    """budgets"""
    seeds: int = 3
    """of each training"""
    processes: int | None = None
    """how many place at once; all cores if not given"""
    recipe: Recipe = field(default_factory=Recipe)
    """its folder and seed are set from the above"""


def train(config: MessagesConfig, kind: str) -> tuple[str, ...]:
    """(S,) checkpoints of one kind, made where they are missing."""
    recipe, paths = config.recipe, []
    policy = replace(recipe.training.policy, **KINDS[kind])  # type: ignore[arg-type]
    for seed in range(config.seeds):
        folder = config.out / kind.replace(" ", "-") / f"seed-{seed}"
        if not (folder / CHECKPOINT).is_file():
            follow(replace(recipe, out=folder, seed=seed, training=replace(recipe.training, policy=policy)))
        paths.append(str(folder / CHECKPOINT))
    return tuple(paths)


def gains(rows: Sequence[Row], ours: str, theirs: str, seeds: int) -> Gains:
    """By how much one placer's makespans are shorter than another's; who has one seed is compared with all of ours."""
    us = {(row["graph"], row["cluster"], row["seed"], row["placer"]): row["makespan_us"] for row in rows}
    where = list(dict.fromkeys((row["graph"], row["cluster"]) for row in rows if row["placer"] == ours))
    last = max(row["seed"] for row in rows if row["placer"] == theirs)
    found = np.empty((seeds, len(where)))
    for s in range(seeds):
        for c, key in enumerate(where):
            other = us[*key, min(s, last), theirs]
            found[s, c] = 100.0 * (other - us[*key, s, ours]) / other
    return found


def table(found: Mapping[str, Mapping[str, Gains]], parameters: Mapping[str, int]) -> Table:
    """A line for each kind; behind each gain that it is over the first kind's, with the standard error over graphs."""
    first = next(iter(found))
    head = ["messages", "parameters"]
    for column in found[first]:
        head += [f"{column}, %", f"over {first}"]
    lines: list[Sequence[str]] = [head, rule(len(head))]
    for kind, by_column in found.items():
        line = [kind, f"{parameters[kind]:,}"]
        for column, of in by_column.items():
            more = (of - found[first][column]).mean(0)
            error = more.std(ddof=1) / np.sqrt(len(more)) if len(more) > 1 else np.nan
            line += [
                mean_and_spread(of.mean(1).tolist(), ".2f"),
                "" if kind == first else f"{more.mean():+.2f} ± {error:.2f}",
            ]
        lines.append(line)
    return lines


def messages_figure(found: Mapping[str, Mapping[str, Gains]]) -> Figure:
    """A bar for each kind and budget, a dot for each seed."""
    figure = Figure(figsize=(6.4, 3.4), layout="constrained")
    FigureCanvasAgg(figure)
    axes, columns = figure.add_subplot(), list(next(iter(found.values())))
    width = 0.8 / len(found)
    for number, (kind, by_column) in enumerate(found.items()):
        x = np.arange(len(columns)) + (number - (len(found) - 1) / 2) * width
        axes.bar(x, [of.mean() for of in by_column.values()], 0.9 * width, label=kind)
        for at, of in zip(x, by_column.values(), strict=True):
            axes.plot(np.full(len(of), at), of.mean(1), ".", color="black", markersize=4)
    axes.set_xticks(range(len(columns)), columns)
    axes.set_ylabel("faster by, %")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize="small", frameon=False, title="messages", title_fontsize="small")
    axes.set_title("Message passing", loc="left", fontsize="medium")
    return figure


def main(config: MessagesConfig) -> None:
    """Train, place, print the table and write it with its picture.

    Raises:
        SystemExit: an unknown kind, or none, or no seed.
    """
    unknown = [kind for kind in config.kinds if kind not in KINDS]
    if unknown or not config.kinds:
        raise SystemExit(f"error: --kinds must be of {', '.join(KINDS)}, not {', '.join(unknown) or 'empty'}")
    if config.seeds < 1:
        raise SystemExit(f"error: --seeds must be at least 1, not {config.seeds}")
    found, parameters = {}, {}
    for kind in config.kinds:
        checkpoints = train(config, kind)
        saved = load_checkpoint(checkpoints[0])
        parameters[kind] = sum(value.numel() for value in saved["best_parameters"].values())
        rows = place(
            BudgetConfig(
                out=config.out / kind.replace(" ", "-"),
                families=config.families,
                count=config.count,
                clusters=config.clusters,
                checkpoints=checkpoints,
                against=(AGAINST,),
                simulations=config.simulations,
                seconds=(),
                seeds=config.seeds,
                processes=config.processes,
            )
        )
        found[kind] = {"one pass": gains(rows, PASS, CHEAP, config.seeds)}
        for budget in config.simulations:
            ours, theirs = (f"{placer}@{budget}" for placer in (GUIDED, AGAINST))
            found[kind][f"{budget} simulations"] = gains(rows, ours, theirs, config.seeds)
    lines = [
        f"The recipe of the package's checkpoint with {config.seeds} seeds each, {config.recipe.training.iterations} "
        f"iterations; the first {config.count} test graphs of {', '.join(config.families)} on each of "
        f"{', '.join(config.clusters)}; {machine()}. One pass against the best cheap heuristic, guided search against "
        f"{AGAINST} annealing. ± is the standard deviation over seeds, of differences the standard error over graphs.",
        markdown(table(found, parameters)),
    ]
    publish(config.out, "messages", lines, messages_figure(found))


if __name__ == "__main__":
    command(main, MessagesConfig, "messages", __doc__)
