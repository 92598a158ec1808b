"""Pictures of schedules: Gantt charts by device.

Figures are made without pyplot, so they share no state and need no display.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from placeto.errors import PlacementError
from placeto.formats.op_labels import OTHER, captions, color_labels
from placeto.plumbing.terminal import drawable
from placeto.problem.files import atomic_write
from placeto.problem.units import format_us
from placeto.simulator.single_device import best_single

if TYPE_CHECKING:
    from placeto.simulator.schedule import Schedule

Color = tuple[float, float, float, float]
_ROW_INCHES = 0.6  # height of a device's row
_MOST_INCHES = 12.0  # height of all rows together, at most
_LEGEND_INCHES = 0.17  # height of a line of the legend
_LETTER = 0.0085  # width of a letter, as a share of the time axis
_TITLE = 160  # characters of a title, at most
_LINK_COLOR = "0.35"
SUFFIXES = (".png", ".svg", ".pdf")


def gantt_figure(schedule: Schedule, title: str | None = None) -> Figure:
    """Return a Gantt chart with a row for each device that is used.

    Ops are coloured by module. A thin row below a device shows what it sends.
    """
    graph, cluster = schedule.problem.graph, schedule.problem.cluster
    single = best_single(schedule.problem)
    of_one = "no single device holds the graph"
    if single is not None:
        of_one = f"{schedule.makespan_us / (single.makespan_us or 1.0):.3f} of one device"
    time = format_us(schedule.makespan_us)
    return gantt_panels({f"{title or f'{graph.name} on {cluster.name}'}: {time}, {of_one}": schedule})


def gantt_panels(schedules: Mapping[str, Schedule], title: str | None = None) -> Figure:
    """Return Gantt charts of one graph below each other, with one time axis and the same colours.

    Args:
        schedules: heading of a chart -> its schedule.
        title: the title of the whole figure.
    """
    first = next(iter(schedules.values()))
    labels, end_us = color_labels(first), max(schedule.makespan_us for schedule in schedules.values()) or 1.0
    shown = list(dict.fromkeys(label for label in labels if label != OTHER))
    palette = colormaps["tab10"].resampled(10) if len(shown) <= 10 else colormaps["turbo"].resampled(len(shown))
    colors = {label: palette(i) for i, label in enumerate(shown)} | {OTHER: (0.75, 0.75, 0.75, 1.0)}
    rows = [len(np.unique(schedule.placement)) for schedule in schedules.values()]
    row_inches = min(_ROW_INCHES, _MOST_INCHES / sum(rows))
    height = max(0.6 + 0.7 * len(rows) + row_inches * sum(rows), _LEGEND_INCHES * len(shown))
    figure = Figure(figsize=(11, height), layout="constrained")
    panels = figure.subplots(len(rows), 1, sharex=True, squeeze=False, height_ratios=rows)[:, 0]
    for axes, (heading, schedule) in zip(panels, schedules.items(), strict=True):
        _draw(axes, schedule, labels, colors, end_us, row_inches == _ROW_INCHES)
        axes.set_title(drawable(heading, _TITLE), loc="left", fontsize="medium")
    panels[-1].set_xlabel("; ".join(filter(None, (f"time ({_unit(end_us)[0]})", panels[-1].get_xlabel()))))
    if title is not None:
        figure.suptitle(drawable(title, _TITLE), x=0.01, ha="left", fontsize="medium")
    patches = [Patch(color=color, label=drawable(label)) for label, color in colors.items() if label in set(labels)]
    patches.append(Patch(color=_LINK_COLOR, label="sends"))
    figure.legend(handles=patches, loc="outside right upper", fontsize="x-small", frameon=False)
    return figure


def _draw(
    axes: Axes, schedule: Schedule, labels: list[str], colors: Mapping[str, Color], end_us: float, spacious: bool
) -> None:
    """Draw one schedule on a time axis that ends at `end_us`; if the rows are `spacious`, with captions."""
    cluster = schedule.problem.cluster
    used, row = np.unique(schedule.placement, return_inverse=True)
    row_of = dict(zip(used.tolist(), range(len(used)), strict=True))
    _, scale = _unit(end_us)
    boxes = _boxes(schedule.start_us / scale, schedule.finish_us / scale, row - 0.36, 0.5)
    axes.add_collection(PolyCollection(list(boxes), facecolors=[colors[label] for label in labels], linewidths=0))
    senders = np.array([row_of[device] for device in schedule.send_src.tolist()], float)
    sends = _boxes(schedule.send_start_us / scale, schedule.send_finish_us / scale, senders + 0.18, 0.16)
    axes.add_collection(PolyCollection(list(sends), facecolors=_LINK_COLOR, linewidths=0))
    axes.set_xlim(0.0, end_us / scale * 1.002)
    axes.set_ylim(len(used) - 0.5, -0.5)
    if spacious:
        for middle, line, text, color in _captions(schedule, row, labels, colors, _LETTER * end_us):
            axes.text(
                middle / scale, line - 0.11, drawable(text), color=color, fontsize="xx-small", ha="center", va="center"
            )
    busy = 100.0 * schedule.busy_us[used] / (schedule.makespan_us or 1.0)
    between = "\n" if spacious else ", "
    drawn = [drawable(cluster.device_names[d], 32) for d in used]
    names = [f"{name}{between}{share:.0f} % busy" for name, share in zip(drawn, busy, strict=True)]
    axes.set_yticks(range(len(used)), names, fontsize="medium" if spacious else "x-small")
    idle = cluster.num_devices - len(used)
    axes.set_xlabel(f"{idle} of {cluster.num_devices} devices are idle" if idle else "")
    axes.spines[["top", "right"]].set_visible(False)


def _unit(end_us: float) -> tuple[str, float]:
    """Return the unit of a time axis that ends at `end_us`, and how many microseconds the unit has."""
    return ("ms", 1e3) if end_us >= 2e3 else ("µs", 1.0)


def save_figure(figure: Figure, path: str | Path) -> None:
    """Write a figure as PNG, SVG or PDF, by the ending of its name.

    Raises:
        PlacementError: another ending.
        OSError: the file can't be written.
    """
    check_suffix(path)
    drawn = BytesIO()  # not the file itself: an error in writing it would be hidden by one of matplotlib's PDF writer
    with missing_letters_are_boxes():
        figure.savefig(drawn, dpi=150, format=Path(path).suffix[1:].lower())
    with atomic_write(path) as temporary:
        temporary.write_bytes(drawn.getbuffer())


@contextmanager
def missing_letters_are_boxes() -> Iterator[None]:
    """A context in which matplotlib doesn't warn of letters that its font lacks; it draws boxes in place of them."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"Glyph \d+ .* missing from font")
        yield


def check_suffix(path: str | Path) -> None:
    """Refuse a picture's name with an unknown ending, before any work is done.

    Raises:
        PlacementError: the ending is not in `SUFFIXES`.
    """
    if Path(path).suffix.lower() not in SUFFIXES:
        raise PlacementError(f"{path}: a picture's name must end in {', '.join(SUFFIXES)}")


def _boxes(start: np.ndarray, finish: np.ndarray, bottom: np.ndarray, height: float) -> np.ndarray:
    """(M, 4, 2) corners of M rectangles."""
    xs = np.stack([start, start, finish, finish], axis=1)
    ys = np.stack([bottom, bottom + height, bottom + height, bottom], axis=1)
    return np.stack([xs, ys], axis=2)


def _captions(
    schedule: Schedule, row: np.ndarray, labels: list[str], colors: Mapping[str, Color], letter: float
) -> list[tuple[float, int, str, str]]:
    """Return the captions of those runs of ops of one label that are wide enough for a caption.

    `letter` is the width of a letter, in microseconds. A caption is its middle in microseconds, row, text and colour.
    """
    start, finish = schedule.start_us, schedule.finish_us
    runs: list[list[int]] = []
    for op in np.lexsort((start, row)).tolist():
        if start[op] == finish[op] or labels[op] == OTHER:
            continue
        last = runs[-1][-1] if runs else op
        apart = (row[op], labels[op]) != (row[last], labels[last]) or start[op] > finish[last] + letter
        if apart or not runs:
            runs.append([])
        runs[-1].append(op)
    placed, names = [], {label: captions(label, colors) for label in colors}
    for run in runs:
        label, begin, end = labels[run[0]], start[run[0]], finish[run[-1]]
        text = next((name for name in names[label] if len(name) * letter <= end - begin), None)
        if text is not None:
            red, green, blue, _ = colors[label]
            ink = "k" if 0.3 * red + 0.6 * green + 0.1 * blue > 0.5 else "w"
            placed.append((0.5 * (begin + end), int(row[run[0]]), text, ink))
    return placed
