"""Pictures of comparisons: makespan against budget, and clusters beside one another.

Figures are made without pyplot, so they share no state and need no display.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from matplotlib import colormaps
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from placeto.plumbing.terminal import drawable
from placeto.problem.units import format_us

if TYPE_CHECKING:
    from placeto.planning.machines import Machine

_TITLE = 160  # characters of a title, at most


def curve_figure(
    simulations: Mapping[str, Sequence[tuple[float, float]]],
    seconds: Mapping[str, Sequence[tuple[float, float]]],
    title: str,
) -> Figure:
    """Draw the makespan relative to one device against simulations and against seconds, with a line for each placer.

    A line ends in a dot where the placer was done, and continues dotted, for comparison with placers that took longer.

    Args:
        simulations: placer -> points (simulations, relative makespan), in order.
        seconds: placer -> points (seconds, relative makespan), in order.
        title: the title of the picture.
    """
    figure = Figure(figsize=(11, 4.4), layout="constrained")
    left = figure.add_subplot(1, 2, 1)
    right = figure.add_subplot(1, 2, 2, sharey=left)
    names = sorted(simulations, key=lambda placer: simulations[placer][-1][1])
    palette = colormaps["tab10" if len(names) <= 10 else "tab20"]
    shown: dict[str, Line2D] = {}
    for axes, label, curves in ((left, "simulations", simulations), (right, "seconds", seconds)):
        end = max(points[-1][0] for points in curves.values())
        for number, placer in enumerate(names):
            x, y = np.array(curves[placer]).T
            color = palette(number % palette.N)
            (shown[placer],) = axes.plot(x, y, color=color, drawstyle="steps-post", linewidth=1.6)
            axes.plot(x[-1], y[-1], color=color, marker="o", markersize=4)
            axes.plot([x[-1], end], [y[-1], y[-1]], color=color, linestyle=":", linewidth=1.0)
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter("{x:g}")
        axes.set_xlabel(label)
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    left.set_ylabel("mean makespan / one device")
    labels = list(map(drawable, shown))
    figure.legend(list(shown.values()), labels, loc="outside right upper", fontsize="small", frameon=False)
    figure.suptitle(drawable(title, _TITLE), x=0.01, ha="left", fontsize="medium")
    return figure


def machine_figure(machines: Sequence[Machine], title: str) -> Figure:
    """Draw the time of a step on each cluster: in the best way, and on one device.

    The bars of what doesn't fit in memory are hatched. Prices are written next to the bars of clusters that have one.
    """
    figure = Figure(figsize=(9, 1.1 + 0.85 * len(machines)), layout="constrained")
    axes = figure.add_subplot()
    longest = max(max(machine.best.step_us, machine.one_device_us or 0.0) for machine in machines) or 1.0
    scale, unit = (1e3, "ms") if longest >= 2e3 else (1.0, "µs")
    for place, machine in enumerate(machines):
        best, price, alone_us = machine.best, machine.price_per_step, machine.one_device_us
        text = f" {format_us(best.step_us)}, {best.kind}{best.parts}"
        text += ("" if price is None else f", 1000 cost {1000 * price:.3g}") + ("" if best.fits else ", doesn't fit")
        hatch, edge = (None, "none") if best.fits else ("//", "0.3")
        bars = [(-0.2, best.step_us, text, "tab:blue")]
        bars += [] if alone_us is None else [(0.2, alone_us, f" {format_us(alone_us)}", "tab:orange")]
        for offset, us, label, color in bars:
            axes.barh(place + offset, us / scale, 0.36, color=color, hatch=hatch, edgecolor=edge)
            axes.text(us / scale, place + offset, label, va="center", fontsize="x-small")
    axes.set_yticks(range(len(machines)), [drawable(machine.cluster.name) for machine in machines])
    axes.set_ylim(len(machines) - 0.5, -0.5)
    axes.set_xlim(0.0, 1.6 * longest / scale)
    axes.set_xlabel(f"time of a step ({unit})")
    axes.spines[["top", "right"]].set_visible(False)
    colors = {"best way": "tab:blue", "one device": "tab:orange"}
    handles = [Line2D([], [], color=color, linewidth=6, label=label) for label, color in colors.items()]
    figure.legend(handles=handles, loc="outside lower center", ncols=2, fontsize="small", frameon=False)
    axes.set_title(drawable(title, _TITLE), loc="left", fontsize="medium")
    return figure
