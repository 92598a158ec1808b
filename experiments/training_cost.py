"""What training takes: how good one pass over validation graphs is after so many minutes, with several seeds.

python -m experiments.training_cost [--out runs/training_cost]

The recipe of the package's checkpoint is followed with each seed, which leaves a checkpoint of each as well
(``seed-N/pretrained.safetensors``); the curves are what the trainer validated on the way, best so far. Minutes are
those of one training run from its first iteration on. Run again after an interruption: it goes on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated

import numpy as np
import tyro
from matplotlib.figure import Figure
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from experiments.command import command
from experiments.recipes import CHECKPOINT, Recipe
from experiments.recipes import main as follow
from experiments.tables import Table, machine, markdown, mean_and_spread, publish, rule

Curve = Sequence[tuple[float, float]]
"""Points (minutes, how much faster than the best cheap heuristic one pass is, in per cent), both rising."""


@dataclass(frozen=True)
class CostConfig:
    """Follow the recipe with several seeds and draw what it reaches when."""

    out: Path = Path("runs/training_cost")
    """folder for the runs, the table and the picture"""
    seeds: int = 3
    """of the recipe"""
    minutes: Annotated[tuple[float, ...], tyro.conf.arg(metavar="M")] = (1.0, 2.0, 4.0, 8.0, 15.0, 30.0)
    """columns of the table"""
    recipe: Recipe = field(default_factory=Recipe)
    """its folder and seed are set from the above"""


def curve(folder: Path) -> Curve:
    """What a training run's tensorboard events say of its validations."""
    events = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    events.Reload()
    seconds = {event.step: event.value for event in events.Scalars("seconds/elapsed")}
    validated = {event.step: event.value for event in events.Scalars("validation/to_heuristic")}
    steps = sorted(seconds.keys() & validated.keys())
    gains = np.maximum.accumulate([100.0 * (1.0 - validated[step]) for step in steps])
    return [(seconds[step] / 60.0, float(gain)) for step, gain in zip(steps, gains, strict=True)]


def reached(points: Curve, minutes: float) -> float | None:
    """The last value of a curve up to then; None before its first point.

    >>> reached([(1.0, 5.0), (2.0, 6.0)], 1.5), reached([(1.0, 5.0)], 0.5)
    (5.0, None)
    """
    values = [gain for when, gain in points if when <= minutes]
    return values[-1] if values else None


def table(curves: Sequence[Curve], minutes: Sequence[float]) -> Table:
    """One line: after so many minutes, mean and standard deviation over the seeds that have validated by then."""
    cells = []
    for limit in minutes:
        values = [gain for points in curves if (gain := reached(points, limit)) is not None]
        cells.append(mean_and_spread(values, ".2f") if values else "")
    last = [points[-1] for points in curves]
    end = [mean_and_spread([of[place] for of in last], form) for place, form in ((1, ".2f"), (0, ".1f"))]
    head = ["", *(f"{limit:g} min" for limit in minutes), "end", "minutes in all"]
    return [head, rule(len(head)), ["faster than the best cheap heuristic, %", *cells, *end]]


def cost_figure(curves: Sequence[Curve]) -> Figure:
    """A line for each seed."""
    figure = Figure(figsize=(6.0, 3.6), layout="constrained")
    axes = figure.add_subplot()
    for seed, points in enumerate(curves):
        x, y = zip((0.0, 0.0), *points, strict=True)
        axes.plot(x, y, marker="o", markersize=3, linewidth=1.5, label=f"seed {seed}")
    axes.set_xlabel("minutes of training")
    axes.set_ylabel("faster than the best\ncheap heuristic by, %")
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize="small", frameon=False, loc="lower right")
    axes.set_title("One pass over validation graphs, best so far", loc="left", fontsize="medium")
    return figure


def main(config: CostConfig) -> None:
    """Train, read the curves, print the table and write it with its picture.

    Raises:
        SystemExit: there is no seed.
    """
    if config.seeds < 1:
        raise SystemExit(f"error: --seeds must be at least 1, not {config.seeds}")
    curves = []
    for seed in range(config.seeds):
        folder = config.out / f"seed-{seed}"
        if not (folder / CHECKPOINT).is_file():
            follow(replace(config.recipe, out=folder, seed=seed))
        curves.append(curve(folder / "run"))
    lines = [
        f"The recipe of the package's checkpoint with {config.seeds} seeds; {machine()}. One greedy pass over the "
        "validation graphs, best so far; ± is the standard deviation over seeds.",
        markdown(table(curves, config.minutes)),
    ]
    publish(config.out, "training_cost", lines, cost_figure(curves))


if __name__ == "__main__":
    command(main, CostConfig, "training_cost", __doc__)
