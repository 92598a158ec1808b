"""A step in micro-batches as a grid: a row for each device, with its passes over micro-batches in the order of time.

If `torch.distributed.pipelining` can run the placement, the cells of a row are its chunks in torch's notation, at the
times of whole chunks. Otherwise they are passes over a micro-batch, at the times of the schedule itself.

Legend: N ops, D devices.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from placeto.errors import PlanError
from placeto.problem.graph.label_values import BACKWARD_PASSES, NO_MICRO_BATCH
from placeto.problem.units import format_us
from placeto.simulator.readings.memory_timeline import GATHER, RELAY, SCATTER
from placeto.simulator.tool_steps.chunk_order import order_chunks

if TYPE_CHECKING:
    from placeto.simulator.schedule import Schedule

KINDS = {
    "F": "forward pass",
    "I": "gradients of inputs, for the stage before",
    "W": "gradients of weights",
    "B": "backward pass",
    "other": "sums of gradients, optimizer and other ops of no micro-batch",
    "bubble": "bubble: the device computes nothing",
}
_OTHER, _BUBBLE = "other", "bubble"
_MOST = 64  # devices that are drawn, at most
_COLUMNS = 960  # columns of a row, if cells aren't whole chunks; each shows what runs at its middle
_SHORTEST = 1e-3  # share of the step: a shorter gap isn't drawn
_LETTER, _ROOM, _UPRIGHT = 7.0, 4.0, 12.0  # pixels: width of a letter, room beside a label, width of a turned label
_LANE, _LONGER, _LONGEST = 900.0, 1800.0, 4000.0  # pixels of a row: at least; at most for labels; for turned labels

Key = tuple[str, str, int]
"""The label of a cell, its kind (of `KINDS`), and its micro-batch: in whole chunks, as its replica numbers it."""

Span = tuple[float, float, Key]
"""Start and end, in us, of what a device does, and the key of it."""


@dataclass(frozen=True)
class Cell:
    """What a device does without a break."""

    label: str  # such as "2F0"; "" for a cell without label
    kind: str  # of `KINDS`
    odd: bool  # whether the number of the micro-batch is odd: neighbours differ in shade
    start: float  # where the cell begins, as a share of the step
    share: float  # how long it is, as a share of the step
    title: str  # text that a browser shows for the cell
    room: str  # "wide" if the label has room, "tall" if it has room when it is turned, "" if it has none


@dataclass(frozen=True)
class Row:
    """A device and its cells."""

    device: str
    cells: Sequence[Cell]
    bubble: float  # share of the step in which the device computes nothing


@dataclass(frozen=True)
class Grid:
    """Rows of cells on one axis of time."""

    rows: Sequence[Row]  # none if there are no micro-batches
    kinds: Sequence[str]  # those of `KINDS` that occur
    sentence: str  # what the grid shows, or why there is none
    makespan_us: float
    width: int  # pixels of a row of cells, so that most labels have room


def step_grid(schedule: Schedule) -> Grid:
    """Return the grid of a placed step; for a step without micro-batches, one without rows, whose sentence says why."""
    micro_batch = schedule.problem.graph.micro_batches
    if (micro_batch == NO_MICRO_BATCH).all():
        why = f"{schedule.problem.graph.name} isn't in micro-batches, so there is no grid of passes over them"
        if schedule.problem.graph.mode == "training":
            why += ": capture it with --micro-batches 2 or more"
        return Grid([], [], f"{why}.", schedule.makespan_us, 0)
    if not {GATHER, SCATTER, RELAY}.isdisjoint(schedule.problem.graph.op_types):
        return _by_pass(schedule, "Each device is a replica of the whole model.")
    try:
        order = order_chunks(schedule)
    except PlanError as error:
        why = f"The placement is no pipeline that torch.distributed.pipelining runs: {str(error).rstrip('.')}."
        return _by_pass(schedule, why)
    micro_batches = order.plan.micro_batches[0]
    number = {m: place for of_replica in micro_batches for place, m in enumerate(of_replica)}
    keys = [
        (f"{stage}{kind}{number[m]}", kind, number[m]) if kind else ("", _OTHER, NO_MICRO_BATCH)
        for stage, kind, m in zip(order.stage.tolist(), order.kinds, micro_batch.tolist(), strict=True)
    ]
    text = "A cell is a chunk in torch's notation: 1F2 is the forward pass of stage 1 for micro-batch 2."
    if len(micro_batches) > 1:
        text += " Each replica counts its own micro-batches."
    whole = format_us(order.schedule.makespan_us)
    text += (
        f" In whole chunks, as torch runs them and as drawn here, the step takes {whole}; op by op, as in the chart "
    )
    text += f"below, it takes {format_us(schedule.makespan_us)}."
    if len(micro_batches) > 1:
        text += " Sums of gradients are drawn as Placeto's runtime has them: torch's replicas sum after their chunks."
    return _grid(order.schedule, keys, text, whole=True)


def _by_pass(schedule: Schedule, why: str) -> Grid:
    """Return the grid of what devices run op by op; `why` is a sentence that says why its cells are no chunks."""
    micro_batch = schedule.problem.graph.micro_batches
    keys = [
        (f"{kind}{number}", kind, number) if number != NO_MICRO_BATCH else ("", _OTHER, number)
        for kind, number in zip(_passes(schedule), micro_batch.tolist(), strict=True)
    ]
    text = f"{why} A cell is what the device runs at that time, op by op: F2 is the forward pass of micro-batch 2."
    return _grid(schedule, keys, text, whole=False)


def _passes(schedule: Schedule) -> list[str]:
    return ["B" if name in BACKWARD_PASSES else "F" for name in schedule.problem.graph.passes]


def _grid(schedule: Schedule, keys: Sequence[Key], text: str, whole: bool) -> Grid:
    names, makespan = schedule.problem.cluster.device_names, schedule.makespan_us or 1.0
    used = np.unique(schedule.placement)
    spans = {device: _spans(schedule, device, keys, whole) for device in used[:_MOST].tolist()}
    width = _width(spans.values(), makespan) if whole else _LANE
    bubbles = 1.0 - schedule.busy_us / makespan
    rows = [
        Row(names[device], [_cell(*span, makespan, width) for span in spans_there], float(bubbles[device]))
        for device, spans_there in spans.items()
    ]
    text += f" Hatched gaps are bubbles: of the time of the {len(used)} devices that are used they are "
    text += f"{bubbles[used].mean():.1%}."
    shown = {cell.kind for row in rows for cell in row.cells}
    return Grid(rows, [kind for kind in KINDS if kind in shown], text, schedule.makespan_us, round(width))


def _width(rows: Iterable[Sequence[Span]], makespan: float) -> float:
    """Return the pixels of a row in which 90 % of the labels have room, each in the longest of its cells."""
    longest: dict[tuple[int, str], float] = {}
    for number, row in enumerate(rows):
        for start, end, (label, _, _) in row:
            if label:
                longest[number, label] = max(longest.get((number, label), 0.0), end - start)
    if not longest:
        return _LANE
    per_pixel = makespan / np.array(list(longest.values()))
    wide = np.quantile(per_pixel * [len(label) * _LETTER + _ROOM for _, label in longest], 0.9)
    tall = np.quantile(per_pixel * _UPRIGHT, 0.9)
    return float(max(_LANE, min(wide, _LONGER), min(tall, _LONGEST)))


def _spans(schedule: Schedule, device: int, keys: Sequence[Key], whole: bool) -> list[Span]:
    """Return what a device does, bubbles included, as one span for each stretch without a break."""
    ops = schedule.device_order[device]
    ops = ops[schedule.finish_us[ops] > schedule.start_us[ops]]
    start, makespan = schedule.start_us[ops], schedule.makespan_us
    end = np.minimum(schedule.finish_us[ops] + schedule.problem.cluster.overhead_us[device], makespan)
    ran = [keys[op] for op in ops.tolist()]
    if whole:
        return _joined(zip(start.tolist(), end.tolist(), ran, strict=True), makespan)
    edges = np.linspace(0.0, makespan, _COLUMNS + 1)
    middle = 0.5 * (edges[1:] + edges[:-1])
    at = np.searchsorted(start, middle, side="right") - 1
    busy = np.flatnonzero((at >= 0) & (middle < end[at])).tolist() if len(ops) else []
    return _joined(((float(edges[i]), float(edges[i + 1]), ran[at[i]]) for i in busy), makespan)


def _joined(spans: Iterable[Span], makespan: float) -> list[Span]:
    """Return spans in the order of time, with neighbours of the same key joined, and gaps between them as bubbles."""
    shortest, bubble = _SHORTEST * makespan, ("", _BUBBLE, NO_MICRO_BATCH)
    joined: list[Span] = []
    reached = 0.0
    for start, end, key in spans:
        if start - reached > shortest:
            joined.append((reached, start, bubble))
        if joined and joined[-1][2] == key:
            joined[-1] = (joined[-1][0], end, key)
        else:
            joined.append((start, end, key))
        reached = end
    if makespan - reached > shortest:
        joined.append((reached, makespan, bubble))
    return joined


def _cell(start: float, end: float, key: Key, makespan: float, width: float) -> Cell:
    label, kind, number = key
    share = (end - start) / makespan
    took = f"{format_us(start)} to {format_us(end)}, {format_us(end - start)}, {share:.1%} of the step"
    wide, tall = len(label) * _LETTER + _ROOM <= share * width, share * width >= _UPRIGHT
    room = "wide" if label and wide else "tall" if label and tall else ""
    return Cell(label, kind, number % 2 == 1, start / makespan, share, f"{label or kind}: {took}", room)
