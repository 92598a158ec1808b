"""What message passing is worth: networks with messages and without, fitted to labels that ask more and more of them.

python -m experiments.messages [--out runs/messages]

The effect of a single move can be read off the schedule; that of several can't. So policies are fitted with several
seeds to the same states under three kinds of labels (see `experiments.fits`): of a move alone ("single"), after the
best moves of neighbours that follow it ("follow"), of a group with its neighbours ("set"); on groups, on the many
parts of groups, on many devices. They are judged by the moves of unseen graphs: rank correlation, and what the move
that comes first, or the best of the first eight, gains of what the best one would. Policies fitted to groups then place
unseen graphs as the package's checkpoint does. Run again after an interruption: what is finished is kept.

Legend: S seeds, C graphs on clusters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Annotated

import numpy as np
import tyro
from matplotlib.figure import Figure

from experiments.command import command
from experiments.equal_budgets import CHEAP, GUIDED, PASS, BudgetConfig, place
from experiments.fits import LABELS, VIEWS, Fit, FitConfig, fit_rows
from experiments.tables import Table, by_columns, machine, markdown, mean_and_spread, publish
from placeto.evaluation.summary import Row

AGAINST = "multilevel"
ROUNDS = 2, 0
"""With messages and without."""
JUDGED = {"correlation": "rank correlation", "first": "first move", "best_of_eight": "best of eight"}
PLACED = next(iter(VIEWS))
"""The view whose policies place; what is fitted to "set" says nothing of the moves of a search, and does not."""

Gains = np.ndarray
"""(S, C) float64, per cent."""


@dataclass(frozen=True)
class MessagesConfig:
    """Fit with messages and without, judge, place, and compare."""

    out: Path = Path("runs/messages")
    """folder for the fits, the rows, the table and the picture"""
    views: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME")] = tuple(VIEWS)
    """what the policies see"""
    labels: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME")] = LABELS
    """what they are fitted to"""
    seeds: int = 3
    """of each fit"""
    steps: int = 300
    """gradient steps of each"""
    fits: FitConfig = field(default_factory=FitConfig)
    """states and graphs"""
    families: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME")] = ("cifar10", "nmt", "ptb", "bert")
    """whose test graphs are placed; none = only judge"""
    count: int = 2
    """only the first so many graphs of each"""
    clusters: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME")] = ("4xv100", "8xh100")
    """to place on"""
    simulations: tuple[int, ...] = (100, 300)
    """budgets"""
    processes: int | None = None
    """how many place at once; all cores if not given"""


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


def judged_table(rows: Sequence[Row]) -> Table:
    """A line for each view and label: how well moves are known with messages, and without."""
    head = ["policy sees", "labels"]
    head += [f"{name}, {_messages(rounds)}" for name, rounds in product(JUDGED.values(), ROUNDS)]
    lines: list[Sequence[str]] = [head]
    for (view, label), of in by_columns(rows, "view", "label").items():
        by_rounds = by_columns(of, "rounds")
        line = [view, label]
        for column, rounds in product(JUDGED, ROUNDS):
            line.append(mean_and_spread([row[column] for row in by_rounds[rounds,]], ".3f"))  # type: ignore[index]
        lines.append(line)
    return lines


def placed_table(found: Mapping[tuple[str, int], Mapping[str, Gains]]) -> Table:
    """A line for each kind of labels and messages; behind each gain that over none, with its error over graphs."""
    columns = list(next(iter(found.values())))
    head = ["labels", "messages"]
    for column in columns:
        head += [f"{column}, %", f"over {_messages(ROUNDS[-1])}"]
    lines: list[Sequence[str]] = [head]
    for (label, rounds), by_column in found.items():
        line = [label, _messages(rounds)]
        for column, of in by_column.items():
            more = (of - found[label, ROUNDS[-1]][column]).mean(0)
            error = more.std(ddof=1) / np.sqrt(len(more)) if len(more) > 1 else np.nan
            same = rounds == ROUNDS[-1]
            line += [mean_and_spread(of.mean(1).tolist(), ".2f"), "" if same else f"{more.mean():+.2f} ± {error:.2f}"]
        lines.append(line)
    return lines


def _messages(rounds: int) -> str:
    return f"{rounds} rounds" if rounds else "none"


def messages_figure(rows: Sequence[Row]) -> Figure:
    """A panel for each view: rank correlations under each kind of labels, a dot for each seed."""
    panels = by_columns(rows, "view")
    figure = Figure(figsize=(3.2 * len(panels), 3.2), layout="constrained")
    for place_, ((view,), of) in enumerate(panels.items(), 1):
        axes, labels = figure.add_subplot(1, len(panels), place_), list(dict.fromkeys(row["label"] for row in of))
        for number, rounds in enumerate(ROUNDS):
            values = [[r["correlation"] for r in of if r["label"] == name and r["rounds"] == rounds] for name in labels]
            x = np.arange(len(labels)) + (number - 0.5) * 0.4
            axes.bar(x, [np.mean(some) for some in values], 0.36, label=_messages(rounds))
            for at, some in zip(x, values, strict=True):
                axes.plot(np.full(len(some), at), some, ".", color="black", markersize=4)
        axes.set_xticks(range(len(labels)), labels)
        axes.set_ylim(0.0, 1.0)
        axes.spines[["top", "right"]].set_visible(False)
        axes.set_title(view, loc="left", fontsize="medium")
        if place_ == 1:
            axes.set_ylabel("rank correlation, unseen graphs")
            axes.legend(fontsize="small", frameon=False, title="messages", title_fontsize="small")
    title = "How well networks predict the effects of moves, by what was predicted; a dot is a seed"
    figure.suptitle(title, x=0.01, ha="left", fontsize="medium")
    return figure


def placed(config: MessagesConfig, rows: Sequence[Row]) -> dict[tuple[str, int], dict[str, Gains]]:
    """Gains by labels and rounds, and by column, of the policies that see groups."""
    found = {}
    usable = [row for row in rows if row["view"] == PLACED and row["label"] != "set"]
    for (label, rounds), of in by_columns(usable, "label", "rounds").items():
        out = config.out / f"{label}-{rounds}"
        out.mkdir(parents=True, exist_ok=True)
        own = place(
            BudgetConfig(
                out=out,
                families=config.families,
                count=config.count,
                clusters=config.clusters,
                checkpoints=tuple(row["checkpoint"] for row in of),
                against=(AGAINST,),
                simulations=config.simulations,
                seconds=(),
                seeds=config.seeds,
                processes=config.processes,
            )
        )
        by_column = {"one pass": gains(own, PASS, CHEAP, config.seeds)}
        for budget in config.simulations:
            ours, theirs = (f"{placer}@{budget}" for placer in (GUIDED, AGAINST))
            by_column[f"{budget} simulations"] = gains(own, ours, theirs, config.seeds)
        found[label, int(rounds)] = by_column
    return found


def main(config: MessagesConfig) -> None:
    """Fit, judge, place, print the tables and write them with their picture.

    Raises:
        SystemExit: an unknown view or label, or none, or no seed.
    """
    for name, given, known in (("views", config.views, VIEWS), ("labels", config.labels, LABELS)):
        unknown = [one for one in given if one not in known]
        if unknown or not given:
            raise SystemExit(f"error: --{name} must be of {', '.join(known)}, not {', '.join(unknown) or 'empty'}")
    if config.seeds < 1:
        raise SystemExit(f"error: --seeds must be at least 1, not {config.seeds}")
    wanted = [
        Fit(view, label, rounds, steps=config.steps, seed=seed)
        for view, label, rounds, seed in product(config.views, config.labels, ROUNDS, range(config.seeds))
    ]
    rows = fit_rows(config.out, config.fits, wanted, config.labels)
    lines = [
        f"{config.seeds} seeds each, {config.steps} gradient steps of {config.fits.batch} states; {machine()}. Unseen "
        f"graphs: the first test graph of {', '.join(config.fits.held_out)}. ± is the standard deviation over seeds.",
        markdown(judged_table(rows), 2),
    ]
    if config.families and PLACED in config.views and set(config.labels) != {"set"}:
        lines += [
            f"Placed: the first {config.count} test graphs of {', '.join(config.families)} on each of "
            f"{', '.join(config.clusters)}. One pass against the best cheap heuristic, guided search against {AGAINST} "
            "annealing. ± is the standard deviation over seeds, of differences the standard error over graphs.",
            markdown(placed_table(placed(config, rows)), 2),
        ]
    publish(config.out, "messages", lines, messages_figure(rows))


if __name__ == "__main__":
    command(main, MessagesConfig, "messages", __doc__)
