"""Export of a schedule as a Chrome trace, which opens in Perfetto (https://ui.perfetto.dev)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from placeto.problem.json_files import write_json

if TYPE_CHECKING:
    from placeto.simulator.schedule import Schedule

_DEVICES, _LINKS = 0, 1  # process ids


def chrome_trace(schedule: Schedule) -> dict[str, Any]:
    """Return a trace in the format of chrome://tracing, with a row per device for its ops and a row per link.

    Times are microseconds. Each op is a complete event with its type, module, bytes and FLOPs as arguments. Each
    transfer is a complete event on the row of its link, with its bytes, sender and receiver.
    """
    graph, cluster = schedule.problem.graph, schedule.problem.cluster
    names = cluster.device_names
    events = [_metadata("process_name", _DEVICES, 0, "devices"), _metadata("process_name", _LINKS, 0, "links")]
    for i, device in enumerate(cluster.devices):
        events.append(_metadata("thread_name", _DEVICES, i, f"{device.name} ({device.kind})"))
    output_bytes = np.add.reduceat(np.append(graph.output_bytes, 0), graph.output_ptr[:-1])
    output_bytes[np.diff(graph.output_ptr) == 0] = 0
    for i, op in enumerate(graph.op_names):
        args = {"type": graph.op_types[i], "module": graph.modules[i], "bytes_accessed": float(graph.bytes_accessed[i])}
        args |= {"output_bytes": int(output_bytes[i]), "parameter_bytes": int(graph.param_bytes[i])}
        args |= {"flops": float(graph.flops[i])}
        row = int(schedule.placement[i])
        events.append(_complete(op, "op", _DEVICES, row, schedule.start_us[i], schedule.finish_us[i], args))
    events += _transfers(schedule, names)
    return {"displayTimeUnit": "ms", "otherData": {"graph": graph.name, "cluster": cluster.name}, "traceEvents": events}


def save_chrome_trace(schedule: Schedule, path: str | Path) -> None:
    """Write the trace of `chrome_trace` to a file ``.json`` or ``.json.gz``.

    Raises:
        OSError: the file can't be written.
    """
    write_json(chrome_trace(schedule), path)


def _transfers(schedule: Schedule, names: tuple[str, ...]) -> list[dict[str, Any]]:
    """Return the events that name the rows of links, then one event for each transfer."""
    graph, pairs = schedule.problem.graph, schedule.problem.cluster.link == "pair"
    rows: dict[int, str] = {}
    events = []
    for send in range(len(schedule.send_tensor)):
        tensor, src, dst = (int(a[send]) for a in (schedule.send_tensor, schedule.send_src, schedule.send_dst))
        receiver = names[dst] if dst >= 0 else "all"
        row = src * (len(names) + 1) + dst + 1 if pairs else src
        rows[row] = f"{names[src]} to {receiver}" if pairs else f"{names[src]} sends"
        args = {"bytes": int(graph.output_bytes[tensor]), "from": names[src], "to": receiver}
        start, finish = schedule.send_start_us[send], schedule.send_finish_us[send]
        events.append(_complete(graph.op_names[graph.producer[tensor]], "transfer", _LINKS, row, start, finish, args))
    return [_metadata("thread_name", _LINKS, row, rows[row]) for row in sorted(rows)] + events


def _metadata(kind: str, process: int, thread: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": process, "tid": thread, "args": {"name": name}}


def _complete(
    name: str, category: str, process: int, thread: int, start: float, finish: float, args: dict[str, Any]
) -> dict[str, Any]:
    times = {"ts": float(start), "dur": float(finish - start)}
    return {"ph": "X", "name": name, "cat": category, "pid": process, "tid": thread, **times, "args": args}
