"""A table of devices with a bar each: how much of the step a device is busy, sends, or waits."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import numpy as np
from rich.console import Console
from rich.text import Text

from placeto.plumbing.terminal import table
from placeto.problem.units import format_bytes
from placeto.simulator.readings.device_shares import device_shares

if TYPE_CHECKING:
    from placeto.simulator.schedule import Schedule

_PARTS = ("busy", "sending", "waiting")
_STYLES = ("blue", "yellow", "bright_black")
_PLAIN, _DRAWN = "#>.", "█▒·"
_WIDTH, _NARROWEST, _WIDEST = 30, 12, 60  # letters of a bar: outside of a terminal; least, most on one


def show_devices(schedule: Schedule, memory: bool = True) -> None:
    """Print the table on stdout: in colour and as wide as the terminal if there is one, else as plain text.

    Args:
        schedule: the schedule, which says what the devices do.
        memory: whether to say how many ops each device runs, and its peak memory.
    """
    console = Console(file=sys.stdout, highlight=False)
    in_color = console.is_terminal and not console.no_color and not console.options.ascii_only
    letters = _DRAWN if in_color else _PLAIN
    lines, shares = _lines(schedule, letters, memory), device_shares(schedule)
    room = console.width - max(line.cell_len for line in lines) - 2
    width = min(_WIDEST, max(_NARROWEST, room)) if console.is_terminal else _WIDTH
    bars = [Text(), *(_bar(share, letters, width) for share in shares)]
    for line, bar in zip(lines, bars, strict=True):
        console.print(Text("  ").join([line, bar]) if bar else line, soft_wrap=True)


def _lines(schedule: Schedule, letters: str, memory: bool) -> list[Text]:
    """Return the head of the table, which says what the letters mean, and a line for each device, without its bar."""
    cluster, shares = schedule.problem.cluster, device_shares(schedule)
    ops = np.bincount(schedule.placement, minlength=cluster.num_devices).tolist()
    heads = [f"{part} {letter}" for part, letter in zip(_PARTS, letters, strict=True)]
    rows = [["device", "ops", *heads, "peak memory"]]
    for number, device in enumerate(cluster.devices):
        held = f"{format_bytes(int(schedule.peak_memory[number]))} of {format_bytes(device.memory)}"
        rows.append([device.name, f"{ops[number]}", *(f"{share:.1%}" for share in shares[number]), held])
    if not memory:
        rows = [[row[0], *row[2:5]] for row in rows]
    lines = [Text(line) for line in table(rows, numbers=True).splitlines()]
    for letter, style in zip(letters, _STYLES, strict=True):
        lines[0].highlight_words([letter], style)
    return lines


def _bar(shares: np.ndarray, letters: str, width: int) -> Text:
    """Return a bar with a letter for each part of the step, repeated in proportion to its share."""
    ends = np.rint(np.cumsum(shares) * width).astype(int)
    counts = np.diff(ends, prepend=0).tolist()
    parts = zip(letters, counts, _STYLES, strict=True)
    return Text.assemble(*((letter * count, style) for letter, count, style in parts))
