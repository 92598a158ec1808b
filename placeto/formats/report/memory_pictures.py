"""Memory over time as pictures (SVG), by category; the first one is that of the fullest device.

Legend: P points, C categories.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from placeto.formats.report.axis import round_step
from placeto.problem.units import format_bytes, format_us
from placeto.simulator.readings.memory_timeline import CATEGORIES, memory_by_category

if TYPE_CHECKING:
    from placeto.simulator.schedule import Schedule

WIDTH, HEIGHT = 960, 220
_COLUMNS = 480  # of a picture; each shows its highest point
_MOST = 64  # devices that have a picture, at most
_LOW = 0.2  # if the peak is below this share of the limit, the limit is above the picture


@dataclass(frozen=True)
class MemoryPicture:
    """Areas over time, in the pixels of a picture of `WIDTH` x `HEIGHT`; each one covers part of those before it."""

    device: str
    areas: Mapping[str, str]  # category -> points of an SVG polygon, the uppermost first; none if it takes nothing
    peak: Mapping[str, str]  # category -> its bytes, as text, when the device holds most
    limit: float | None  # height of the line that is the limit; None = above the picture
    memory: str  # the limit in bytes, as text
    lines: Sequence[tuple[float, str]]  # height of a line, and the bytes that it stands for
    caption: str


def memory_pictures(schedule: Schedule) -> list[MemoryPicture]:
    """Return the pictures of the devices that are used, of 64 at most.

    The device whose peak is the largest share of its memory is the first, the others are in the cluster's order.
    """
    fullest = int((schedule.peak_memory / schedule.problem.cluster.memory).argmax())
    others = [device for device in np.unique(schedule.placement).tolist() if device != fullest]
    held = memory_by_category(schedule, [fullest, *others][:_MOST])
    return [_picture(schedule, device, *timeline) for device, timeline in held.items()]


def _picture(schedule: Schedule, number: int, times: np.ndarray, by_category: np.ndarray) -> MemoryPicture:
    device, sizes = schedule.problem.cluster.devices[number], by_category.sum(axis=1)
    peak = int(sizes.max())
    below = peak < _LOW * device.memory
    top = 1.08 * (peak if below else max(peak, device.memory)) or 1.0
    columns = _columns(times, schedule.makespan_us or 1.0)
    at = np.array([first + sizes[first:last].argmax() for first, last in columns])
    heights = HEIGHT * (1.0 - np.cumsum(by_category[at], axis=1) / top)
    under, areas = np.full(len(at), float(HEIGHT)), {}
    for category, height in zip(CATEGORIES, heights.T, strict=True):
        if (height < under).any():
            areas[category] = " ".join([f"0,{HEIGHT}", *_steps(height), f"{WIDTH},{HEIGHT}"])
        under = height
    step = round_step(max(1.0, top / 4))
    marks = [step * mark for mark in range(int(top / step) + 1)]
    most = dict(zip(CATEGORIES, by_category[sizes.argmax()].tolist(), strict=True))
    return MemoryPicture(
        device.name,
        dict(reversed(areas.items())),
        {category: format_bytes(most[category]) for category in reversed(areas)},
        None if below else round(HEIGHT * (1.0 - device.memory / top), 1),
        format_bytes(device.memory),
        [(round(HEIGHT * (1.0 - mark / top), 1), format_bytes(mark)) for mark in marks],
        _caption(peak, device.memory, float(times[sizes.argmax()]), below),
    )


def _columns(times: np.ndarray, end_us: float) -> list[tuple[int, int]]:
    """Return for each column of a picture the first of the points (P,) in it, and the one behind the last."""
    edges = np.linspace(0.0, end_us, _COLUMNS + 1)
    before = np.maximum(np.searchsorted(times, edges[:-1], side="right") - 1, 0)
    after = np.maximum(np.searchsorted(times, edges[1:], side="left"), before + 1)
    return list(zip(before.tolist(), after.tolist(), strict=True))


def _steps(heights: np.ndarray) -> list[str]:
    """Return the corners of a line with a step for each height; neighbouring steps of equal height are one step."""
    changes = np.flatnonzero(np.diff(heights, prepend=np.inf, append=np.inf))
    corners = []
    for first, last in zip(changes[:-1].tolist(), changes[1:].tolist(), strict=True):
        corners += [f"{end * WIDTH / len(heights):g},{heights[first]:.1f}" for end in (first, last)]
    return corners


def _caption(peak: int, memory: int, when_us: float, below: bool) -> str:
    text = f"peak {format_bytes(peak)} of {format_bytes(memory)} ({peak / memory:.0%}), at {format_us(when_us)}"
    if peak > memory:
        return f"{text}: {format_bytes(peak - memory)} too much"
    return f"{text}; the limit is above the picture" if below else text
