"""The tables of a report: devices, links, cut tensors, and the critical path.

Legend: N ops, S sends, T tensors, D devices.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from placeto.formats.report.modules import UNNAMED
from placeto.formats.report.words import sends_by_pair, work_of_devices
from placeto.problem.units import format_bytes, format_us
from placeto.simulator.readings.device_shares import device_shares

if TYPE_CHECKING:
    from placeto.simulator.readings.critical_path import CriticalPath
    from placeto.simulator.schedule import Schedule

ROWS = 20
_MOST_DEVICES = 64
_CONSUMERS = 3  # modules, and devices, that are named of those that read a tensor


@dataclass(frozen=True)
class Table:
    """A table of texts. `words` has the numbers of the columns with words; all others are aligned to the right."""

    caption: str
    columns: tuple[str, ...]
    rows: Sequence[Sequence[str]]
    words: tuple[int, ...] = (0,)
    left_out: int = 0  # number of rows that aren't shown


def device_table(schedule: Schedule) -> Table:
    """Return the table of what each device computes, sends and holds."""
    cluster, shares = schedule.problem.cluster, device_shares(schedule)
    ops = np.bincount(schedule.placement, minlength=cluster.num_devices)
    sizes = schedule.problem.graph.output_bytes[schedule.send_tensor]
    sent = np.bincount(schedule.send_src, sizes, cluster.num_devices)
    rows, work = [], dict(work_of_devices(schedule))
    for number, device in enumerate(cluster.devices[:_MOST_DEVICES]):
        peak = int(schedule.peak_memory[number])
        memory = f"{format_bytes(peak)} of {format_bytes(device.memory)} ({peak / device.memory:.0%})"
        memory += "" if peak <= device.memory else ": too much"
        parts = [f"{share:.1%}" for share in shares[number]]
        share, mostly = work.get(number, ("", ""))
        sends = format_bytes(float(sent[number]))
        rows.append((device.name, device.kind, f"{ops[number]:,}", share, mostly, *parts, sends, memory))
    columns = ("device", "kind", "ops", "of the work", "most of it in", "busy", "sending", "waiting", "sends", "peak")
    return Table("Devices", columns, rows, (0, 1, 4), max(0, cluster.num_devices - _MOST_DEVICES))


def link_table(schedule: Schedule) -> Table:
    """Return the table of the pairs of devices between which most bytes are sent."""
    names, makespan = schedule.problem.cluster.device_names, schedule.makespan_us or 1.0
    rows = [
        (names[src], names[dst] if dst >= 0 else "all", f"{count:,.0f}", format_bytes(size), f"{time / makespan:.1%}")
        for (src, dst), (count, size, time) in sorted(sends_by_pair(schedule).items(), key=lambda item: -item[1][1])
    ]
    columns = ("from", "to", "tensors", "bytes", "time on the way / step")
    return Table("Transfers by pair of devices", columns, rows[:ROWS], (0, 1), max(0, len(rows) - ROWS))


def cut_table(schedule: Schedule) -> Table:
    """Return the table of the tensors for which most bytes are sent, all copies together."""
    graph, names = schedule.problem.graph, schedule.problem.cluster.device_names
    copies = np.bincount(schedule.send_tensor, minlength=len(graph.output_bytes))
    largest = np.argsort(-copies * graph.output_bytes, kind="stable")[: min(ROWS, int((copies > 0).sum()))]
    rows = []
    for tensor in largest.tolist():
        producer = int(graph.producer[tensor])
        home = int(schedule.placement[producer])
        readers = graph.edge_dst[graph.edge_tensor == tensor]
        away = [int(reader) for reader in readers if schedule.placement[reader] != home]
        where = _first((names[schedule.placement[reader]] for reader in away), _CONSUMERS)
        modules = _first((_module(schedule, reader) for reader in away), _CONSUMERS)
        size, times = int(graph.output_bytes[tensor]), int(copies[tensor])
        sent = format_bytes(size) if times == 1 else f"{times} x {format_bytes(size)}"
        maker = graph.op_names[producer]
        if graph.modules[producer]:
            maker += f" ({graph.modules[producer]})"
        rows.append((sent, names[home], maker, where, modules))
    columns = ("bytes", "from", "made by op (module)", "to", "read in modules")
    return Table("Largest tensors that are sent", columns, rows, (1, 2, 3, 4), int((copies > 0).sum()) - len(rows))


def path_table(schedule: Schedule, path: CriticalPath) -> Table:
    """Return the table of the modules that take most of the critical path."""
    totals: dict[str, list[float]] = {}
    count = schedule.problem.num_ops
    for step, needed, took in zip(path.steps.tolist(), path.needed.tolist(), path.took_us.tolist(), strict=True):
        row = totals.setdefault(_module(schedule, _op_of(schedule, step)), [0.0] * 4)
        row[0] += step < count
        row[(1 if needed else 2) if step < count else 3] += took
    order = sorted(totals, key=lambda module: -sum(totals[module][1:]))
    whole = schedule.makespan_us or 1.0
    rows = [
        (module, f"{ops:.0f}", format_us(compute), format_us(ahead), format_us(sends), f"{share:.1%}")
        for module in order[:ROWS]
        for ops, compute, ahead, sends in [totals[module]]
        for share in [(compute + ahead + sends) / whole]
    ]
    columns = ("module", "ops", "computing", "keeping others waiting", "sending", "share of the step")
    return Table("Critical path by module", columns, rows, (0,), max(0, len(order) - ROWS))


def step_table(schedule: Schedule, path: CriticalPath) -> Table:
    """Return the table of the longest steps of the critical path, in the order in which they happen."""
    graph, names, count = schedule.problem.graph, schedule.problem.cluster.device_names, schedule.problem.num_ops
    rows = []
    for position in np.sort(np.argsort(-path.took_us, kind="stable")[:ROWS]).tolist():
        step, needed = int(path.steps[position]), bool(path.needed[position])
        op = _op_of(schedule, step)
        if step < count:
            where = names[schedule.placement[op]]
            why = "the next one needs its result" if needed else "the next one waits for its device"
            start = schedule.start_us[step]
        else:
            to = int(schedule.send_dst[step - count])
            where = f"{names[schedule.send_src[step - count]]} to {names[to] if to >= 0 else 'all'}"
            why = "the next one needs the tensor" if needed else "the next one waits for its link"
            start = schedule.send_start_us[step - count]
        name = graph.op_names[op] if step < count else f"tensor of {graph.op_names[op]}"
        row = (name, _module(schedule, op), where, format_us(float(start)), format_us(float(path.took_us[position])))
        rows.append((*row, why))
    columns = ("op or tensor", "module", "where", "begins at", "takes", "why it is on the path")
    caption = "Longest ops and transfers of the critical path"
    return Table(caption, columns, rows, (0, 1, 2, 5), len(path.steps) - len(rows))


def _op_of(schedule: Schedule, step: int) -> int:
    """Return the op of a step of the critical path: the op itself, or the one whose tensor the step sends."""
    count = schedule.problem.num_ops
    if step < count:
        return step
    return int(schedule.problem.graph.producer[schedule.send_tensor[step - count]])


def _module(schedule: Schedule, op: int) -> str:
    return schedule.problem.graph.modules[op] or UNNAMED


def _first(texts: Iterable[str], most: int) -> str:
    """Return the first `most` different texts, and how many more there are."""
    different = list(dict.fromkeys(texts))
    more = len(different) - most
    return ", ".join(different[:most]) + (f" and {more} more" if more > 0 else "")
