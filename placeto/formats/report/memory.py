"""Memory over time as small pictures (SVG), one for each device.

Legend: P points.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from placeto.problem.units import format_bytes, format_us
from placeto.simulator.memory_timeline import memory_timelines

if TYPE_CHECKING:
    from placeto.simulator.schedule import Schedule

WIDTH, HEIGHT = 480, 110
_COLUMNS = 240  # of a picture: in each its highest point
_MOST = 64  # devices
_LOW = 0.2  # share of the limit below which the limit is above the picture


@dataclass(frozen=True)
class MemoryPicture:
    """A line over time, in the pixels of a picture of `WIDTH` x `HEIGHT`."""

    device: str
    points: str  # of an SVG polygon
    limit: float | None  # height of the line that is the limit; None = above the picture
    over: bool  # the peak is above the limit
    caption: str


def memory_pictures(schedule: Schedule) -> list[MemoryPicture]:
    """One for each device that is used, of the first 64."""
    used = np.unique(schedule.placement)[:_MOST].tolist()
    timelines, end_us = memory_timelines(schedule), schedule.makespan_us or 1.0
    return [_picture(schedule, device, timelines[device], end_us) for device in used]


def _picture(schedule: Schedule, number: int, timeline: tuple[np.ndarray, np.ndarray], end_us: float) -> MemoryPicture:
    times, sizes = timeline
    device, peak = schedule.problem.cluster.devices[number], int(sizes.max())
    below = peak < _LOW * device.memory
    top = 1.08 * (peak if below else max(peak, device.memory)) or 1.0
    edges = np.linspace(0.0, end_us, _COLUMNS + 1)
    before = np.maximum(np.searchsorted(times, edges[:-1], side="right") - 1, 0)
    after = np.maximum(np.searchsorted(times, edges[1:], side="left"), before + 1)
    heights = [int(sizes[first:last].max()) for first, last in zip(before, after, strict=True)]
    corners = [f"0,{HEIGHT}"]
    for column, size in enumerate(heights):
        y = HEIGHT * (1.0 - size / top)
        corners += [f"{column * WIDTH / _COLUMNS:g},{y:.1f}", f"{(column + 1) * WIDTH / _COLUMNS:g},{y:.1f}"]
    when = format_us(float(times[sizes.argmax()]))
    caption = f"peak {format_bytes(peak)} of {format_bytes(device.memory)} ({peak / device.memory:.0%}), at {when}"
    if peak > device.memory:
        caption += f": {format_bytes(peak - device.memory)} too much"
    elif below:
        caption += "; the limit is above the picture"
    limit = None if below else round(HEIGHT * (1.0 - device.memory / top), 1)
    return MemoryPicture(device.name, " ".join([*corners, f"{WIDTH},{HEIGHT}"]), limit, peak > device.memory, caption)
