"""Memory over time as pictures (SVG): a small one for each device, and by category for the fullest one.

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

WIDTH, HEIGHT = 480, 110
LARGE_WIDTH, LARGE_HEIGHT = 960, 220
_COLUMNS = 240  # of a picture; each shows its highest point
_LARGE_COLUMNS = 480
_MOST = 64  # devices that have a picture, at most
_LOW = 0.2  # if the peak is below this share of the limit, the limit is above the picture


@dataclass(frozen=True)
class MemoryPicture:
    """A line over time, in the pixels of a picture of `WIDTH` x `HEIGHT`."""

    device: str
    points: str  # of an SVG polygon
    limit: float | None  # height of the line that is the limit; None = above the picture
    memory: str  # the limit in bytes, as text
    over: bool  # the peak is above the limit
    caption: str


def memory_pictures(schedule: Schedule) -> list[MemoryPicture]:
    """Return the pictures of the devices that are used, of 64 at most."""
    used = np.unique(schedule.placement)[:_MOST].tolist()
    return [
        _picture(schedule, device, times, by_category.sum(axis=1))
        for device, (times, by_category) in memory_by_category(schedule, used).items()
    ]


@dataclass(frozen=True)
class StackedPicture:
    """Areas on top of each other over time, in the pixels of a picture of `LARGE_WIDTH` x `LARGE_HEIGHT`."""

    device: str
    areas: Mapping[str, str]  # category -> points of an SVG polygon, without categories that take nothing
    peak: Mapping[str, str]  # category -> its bytes, as text, when the device holds most
    limit: float | None  # height of the line that is the limit; None = above the picture
    memory: str  # the limit in bytes, as text
    lines: Sequence[tuple[float, str]]  # height of a line, and the bytes that it stands for
    caption: str


def stacked_picture(schedule: Schedule) -> StackedPicture:
    """Return memory by category over time, for the device whose peak is the largest share of its memory."""
    number = int((schedule.peak_memory / schedule.problem.cluster.memory).argmax())
    device, end_us = schedule.problem.cluster.devices[number], schedule.makespan_us or 1.0
    times, by_category = memory_by_category(schedule, [number])[number]
    sizes = by_category.sum(axis=1)
    peak = int(sizes.max())
    top, below = _scale(peak, device.memory)
    at = np.array([first + sizes[first:last].argmax() for first, last in _columns(times, end_us, _LARGE_COLUMNS)])
    tops = LARGE_HEIGHT * (1.0 - np.cumsum(by_category[at], axis=1) / top)
    under, areas = np.full(len(at), float(LARGE_HEIGHT)), {}
    for category, height in zip(CATEGORIES, tops.T, strict=True):
        if (height < under).any():
            areas[category] = " ".join(_steps(height, LARGE_WIDTH) + _steps(under, LARGE_WIDTH)[::-1])
        under = height
    step = round_step(max(1.0, top / 4))
    marks = [step * mark for mark in range(int(top / step) + 1)]
    most = dict(zip(CATEGORIES, by_category[sizes.argmax()].tolist(), strict=True))
    return StackedPicture(
        device.name,
        areas,
        {category: format_bytes(most[category]) for category in areas},
        None if below else round(LARGE_HEIGHT * (1.0 - device.memory / top), 1),
        format_bytes(device.memory),
        [(round(LARGE_HEIGHT * (1.0 - mark / top), 1), format_bytes(mark)) for mark in marks],
        _caption(peak, device.memory, float(times[sizes.argmax()]), below),
    )


def _picture(schedule: Schedule, number: int, times: np.ndarray, sizes: np.ndarray) -> MemoryPicture:
    device, end_us = schedule.problem.cluster.devices[number], schedule.makespan_us or 1.0
    peak = int(sizes.max())
    top, below = _scale(peak, device.memory)
    highest = np.array([sizes[first:last].max() for first, last in _columns(times, end_us, _COLUMNS)])
    corners = [f"0,{HEIGHT}", *_steps(HEIGHT * (1.0 - highest / top), WIDTH), f"{WIDTH},{HEIGHT}"]
    limit = None if below else round(HEIGHT * (1.0 - device.memory / top), 1)
    caption = _caption(peak, device.memory, float(times[sizes.argmax()]), below)
    memory = format_bytes(device.memory)
    return MemoryPicture(device.name, " ".join(corners), limit, memory, peak > device.memory, caption)


def _scale(peak: int, memory: int) -> tuple[float, bool]:
    """Return the bytes at the upper end of a picture, and whether the device's memory limit is above it."""
    below = peak < _LOW * memory
    return 1.08 * (peak if below else max(peak, memory)) or 1.0, below


def _columns(times: np.ndarray, end_us: float, count: int) -> list[tuple[int, int]]:
    """Return for each column of a picture the first of the points (P,) in it, and the one behind the last."""
    edges = np.linspace(0.0, end_us, count + 1)
    before = np.maximum(np.searchsorted(times, edges[:-1], side="right") - 1, 0)
    after = np.maximum(np.searchsorted(times, edges[1:], side="left"), before + 1)
    return list(zip(before.tolist(), after.tolist(), strict=True))


def _steps(heights: np.ndarray, width: int) -> list[str]:
    """Return the corners of a line with a step for each height; neighbouring steps of equal height are one step."""
    changes = np.flatnonzero(np.diff(heights, prepend=np.inf, append=np.inf))
    corners = []
    for first, last in zip(changes[:-1].tolist(), changes[1:].tolist(), strict=True):
        ends = (first * width / len(heights), last * width / len(heights))
        corners += [f"{end:g},{heights[first]:.1f}" for end in ends]
    return corners


def _caption(peak: int, memory: int, when_us: float, below: bool) -> str:
    text = f"peak {format_bytes(peak)} of {format_bytes(memory)} ({peak / memory:.0%}), at {format_us(when_us)}"
    if peak > memory:
        return f"{text}: {format_bytes(peak - memory)} too much"
    return f"{text}; the limit is above the picture" if below else text
