"""Pictures of experiments: panels of lines.

Figures are made without pyplot, so they share no state and need no display.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib import colormaps
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from placeto.plumbing.terminal import drawable

_TITLE = 160  # characters


def panel_figure(
    panels: Mapping[str, Mapping[str, Sequence[tuple[float, float]]]],
    x_label: str,
    y_label: str,
    title: str,
    *,
    log: bool = False,
    steps: bool = True,
    levels: Mapping[str, Mapping[str, float]] | None = None,
) -> Figure:
    """Lines in panels, up to three in a row: makespans against budgets, or cumulative distributions.

    Args:
        panels: title of a panel -> label -> points (x, y), in order; a label has one colour in all panels.
        x_label: below each panel.
        y_label: left of each panel.
        title: of the picture.
        log: whether x is on a log scale.
        steps: whether y stays until the next point; else points are joined, and x has ticks at them.
        levels: title of a panel -> label -> height of a dotted line across it.
    """
    columns = min(3, len(panels))
    rows = -(-len(panels) // columns)
    figure = Figure(figsize=(3.4 * columns + 2.0, 2.9 * rows + 0.5), layout="constrained")
    names = list(dict.fromkeys(label for lines in panels.values() for label in lines))
    palette = colormaps["tab10" if len(names) <= 10 else "tab20"]
    color = {name: palette(number % palette.N) for number, name in enumerate(names)}
    shown: dict[str, Line2D] = {}
    for number, (heading, lines) in enumerate(panels.items(), 1):
        axes = figure.add_subplot(rows, columns, number)
        for label, points in lines.items():
            x, y = np.array(points).T
            style, marker = ("steps-post", "") if steps else ("default", "o")
            (shown[label],) = axes.plot(x, y, color=color[label], drawstyle=style, marker=marker, linewidth=1.5)
        for place, (label, height) in enumerate((levels or {}).get(heading, {}).items()):
            shown[label] = axes.axhline(height, color="0.3", linestyle=(":", "--", "-.")[place % 3], linewidth=1.0)
        if log:
            axes.set_xscale("log")
            axes.xaxis.set_major_formatter("{x:g}")
            axes.xaxis.set_minor_formatter("")
        if not steps:
            axes.set_xticks(sorted({x for points in lines.values() for x, _ in points}))
        axes.set_title(drawable(heading, _TITLE), loc="left", fontsize="medium")
        axes.set_xlabel(drawable(x_label))
        axes.set_ylabel(drawable(y_label))
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    figure.legend(
        list(shown.values()), list(map(drawable, shown)), loc="outside right upper", fontsize="small", frameon=False
    )
    figure.suptitle(drawable(title, _TITLE), x=0.01, ha="left", fontsize="medium")
    return figure


def scatter_figure(points: Mapping[str, tuple[np.ndarray, np.ndarray]], x_label: str, title: str) -> Figure:
    """Dots of simulated against other milliseconds, on log scales, and the line where they are equal.

    Args:
        points: label -> (K,) other times, and (K,) simulated ones.
        x_label: what the other times are.
        title: of the picture.
    """
    figure = Figure(figsize=(6.4, 5.6), layout="constrained")
    axes = figure.add_subplot()
    for label, (x, y) in points.items():
        axes.scatter(x, y, s=10, label=label)
    ends = [min(x.min() for x, _ in points.values()), max(x.max() for x, _ in points.values())]
    axes.plot(ends, ends, color="0.5", linewidth=1, label="both equal")
    axes.set(xscale="log", yscale="log", xlabel=x_label, ylabel="simulated step, ms")
    axes.set_title(title, loc="left", fontsize="medium")
    axes.legend(frameon=False)
    axes.grid(alpha=0.3)
    return figure
