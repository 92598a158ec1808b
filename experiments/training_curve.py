"""What each doubling of data, width, rounds of messages and time of training brings.

python -m experiments.training_curve [--out runs/training_curve]

Policies are fitted to the exact effects of single moves (see `experiments.fits`), with several seeds; each setting is
varied alone. They are judged by the moves of unseen graphs: rank
correlation, and the share of the best move's gain that the move ranked first has, or the best of the first eight. Run
again after an interruption: what is finished is kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from experiments.command import command
from experiments.fits import Fit, FitConfig, fit_rows
from experiments.messages import JUDGED
from experiments.tables import Table, cells, machine, markdown, mean_and_spread, publish, rule
from placeto.evaluation.summary import Row

NAMES = {"share": "share of the problems", "hidden": "width", "rounds": "rounds of messages", "steps": "gradient steps"}


@dataclass(frozen=True)
class CurveConfig:
    """Fit with one setting after the other halved and doubled."""

    out: Path = Path("runs/training_curve")
    """folder for the fits, the table and the picture"""
    share: tuple[float, ...] = (0.125, 0.25, 0.5, 1.0)
    """of the training problems"""
    hidden: tuple[int, ...] = (8, 16, 32, 64)
    """widths"""
    rounds: tuple[int, ...] = (0, 1, 2, 4)
    """of messages"""
    steps: tuple[int, ...] = (50, 100, 200, 400, 800)
    """gradient steps"""
    seeds: int = 3
    """of each fit"""
    default_steps: int = 300
    """where they are not varied"""
    fits: FitConfig = field(default_factory=FitConfig)
    """states and graphs"""


def wanted(config: CurveConfig) -> dict[str, list[Fit]]:
    """The fits of each setting, by its field's name."""
    base = Fit(steps=config.default_steps)
    return {
        name: [
            replace(base, seed=seed, **{name: value}) for value in getattr(config, name) for seed in range(config.seeds)
        ]
        for name in NAMES
    }


def table(by_setting: dict[str, list[Row]]) -> Table:
    """A line for each value of each setting."""
    head = ["setting", "value", "parameters", *JUDGED.values()]
    lines: list[Sequence[str]] = [head, rule(len(head))]
    for name, rows in by_setting.items():
        for (value,), of in cells(rows, name).items():
            judged = [mean_and_spread([row[column] for row in of], ".3f") for column in JUDGED]
            lines.append([NAMES[name], f"{value:g}", f"{of[0]['parameters']:,}", *judged])
    return lines


def curve_figure(by_setting: dict[str, list[Row]]) -> Figure:
    """A panel for each setting: means over seeds, a dot for each."""
    figure = Figure(figsize=(2.9 * len(by_setting), 3.2), layout="constrained")
    first = None
    for place, (name, rows) in enumerate(by_setting.items(), 1):
        axes = first = figure.add_subplot(1, len(by_setting), place, sharey=first)
        values = [value for (value,) in cells(rows, name)]
        for column, label in JUDGED.items():
            means = [np.mean([row[column] for row in of]) for of in cells(rows, name).values()]
            (line,) = axes.plot(range(len(values)), means, linewidth=1.5, label=label)
            x = [values.index(row[name]) for row in rows]
            axes.plot(x, [row[column] for row in rows], ".", color=line.get_color(), markersize=4)
        axes.set_xticks(range(len(values)), [f"{value:g}" for value in values])
        axes.set_xlabel(NAMES[name])
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
        if place == 1:
            axes.set_ylabel("correlation, share of gain")
            axes.legend(fontsize="small", frameon=False)
    title = "How well networks predict which moves gain most, by the size of the training; a dot is a seed"
    figure.suptitle(title, x=0.01, ha="left", fontsize="medium")
    return figure


def main(config: CurveConfig) -> None:
    """Fit, judge, print the table and write it with its picture.

    Raises:
        SystemExit: there is no seed.
    """
    if config.seeds < 1:
        raise SystemExit(f"error: --seeds must be at least 1, not {config.seeds}")
    every = wanted(config)
    distinct = list(dict.fromkeys(fit for fits in every.values() for fit in fits))
    rows = dict(zip(distinct, fit_rows(config.out, config.fits, distinct, ("single",)), strict=True))
    by_setting = {name: [rows[fit] for fit in fits] for name, fits in every.items()}
    base = Fit(steps=config.default_steps)
    lines = [
        f"{config.seeds} seeds each; {machine()}. Where it is not varied: all problems, width {base.hidden}, "
        f"{base.rounds} rounds, {base.steps} steps of {config.fits.batch} states. Unseen graphs: the first test graph "
        f"of {', '.join(config.fits.held_out)}. ± is the standard deviation over seeds.",
        markdown(table(by_setting)),
    ]
    publish(config.out, "training_curve", lines, curve_figure(by_setting))


if __name__ == "__main__":
    command(main, CurveConfig, "training_curve", __doc__)
