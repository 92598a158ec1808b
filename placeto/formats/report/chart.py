"""The data that the script of a report draws: ops and sends as compact arrays, sorted by row and start.

Legend: N ops, S sends.
"""

from __future__ import annotations

import base64
import colorsys
from typing import TYPE_CHECKING, Any

import numpy as np

from placeto.formats.op_labels import OTHER, color_labels

if TYPE_CHECKING:
    from placeto.simulator.readings.critical_path import CriticalPath
    from placeto.simulator.schedule import Schedule

TICKS = 2**32 - 1
"""Times are whole numbers from 0 to this one, which is the makespan."""
_GOLDEN = 0.618034  # step of hue: hues stay apart, however many steps there are
_GREY = "#8a8f98"


def chart_data(schedule: Schedule, path: CriticalPath) -> dict[str, Any]:
    """Return the arrays by name, and the texts to which their numbers refer.

    An array is in base64, of little-endian integers (``bytes`` of sends: of floats of 64 bits). Ops are sorted by
    device and start, sends by sender and start; ``first`` has the position of each device's first one. ``start`` and
    ``end`` are in `TICKS` of ``makespan_us``. ``name`` of a send is the position of its producer among the ops.
    """
    graph, cluster = schedule.problem.graph, schedule.problem.cluster
    count, devices = graph.num_ops, cluster.num_devices
    labels = color_labels(schedule)
    shown = list(dict.fromkeys(label for label in labels if label != OTHER)) + [OTHER] * (OTHER in labels)
    critical = np.zeros(count + schedule.num_sends, np.uint8)
    critical[path.steps] = 1
    ops = np.lexsort((schedule.start_us, schedule.placement))
    place = np.empty(count, np.int64)
    place[ops] = np.arange(count)
    sends = np.lexsort((schedule.send_start_us, schedule.send_src))
    producer = np.repeat(np.arange(count), np.diff(graph.output_ptr))[schedule.send_tensor]
    modules, module = _numbered(graph.modules)
    types, kind = _numbered(graph.op_types)
    scale = TICKS / (schedule.makespan_us or 1.0)

    def ticks(times: np.ndarray) -> str:
        return _packed(np.clip(np.rint(times * scale), 0, TICKS), "<u4")

    def first(rows: np.ndarray) -> list[int]:
        return np.searchsorted(rows, np.arange(devices + 1)).tolist()

    return {
        "makespan_us": float(schedule.makespan_us),
        "devices": list(cluster.device_names),
        "labels": shown,
        "colors": [_color(number) if label != OTHER else _GREY for number, label in enumerate(shown)],
        "modules": modules,
        "types": types,
        "ops": {
            "first": first(schedule.placement[ops]),
            "start": ticks(schedule.start_us[ops]),
            "end": ticks(schedule.finish_us[ops]),
            "label": _packed(np.array([shown.index(label) for label in labels])[ops], "u1"),
            "module": _packed(module[ops], "<u4"),
            "type": _packed(kind[ops], "<u4"),
            "critical": _packed(critical[:count][ops], "u1"),
            "names": [graph.op_names[op] for op in ops.tolist()],
        },
        "sends": {
            "first": first(schedule.send_src[sends]),
            "start": ticks(schedule.send_start_us[sends]),
            "end": ticks(schedule.send_finish_us[sends]),
            "to": _packed(schedule.send_dst[sends], "<i2"),  # -1 = all devices
            "bytes": _packed(graph.output_bytes[schedule.send_tensor][sends], "<f8"),
            "name": _packed(place[producer][sends], "<u4"),
            "critical": _packed(critical[count:][sends], "u1"),
        },
    }


def _packed(values: np.ndarray, dtype: str) -> str:
    return base64.b64encode(np.asarray(values).astype(dtype).tobytes()).decode()


def _numbered(texts: tuple[str, ...]) -> tuple[list[str], np.ndarray]:
    """Return the different texts, and for each text its number among these (N,)."""
    number = {text: i for i, text in enumerate(dict.fromkeys(texts))}
    return list(number), np.array([number[text] for text in texts])


def _color(number: int) -> str:
    """Return a colour that can be told from white, from near black, and from the colours of neighbouring numbers."""
    lightness = (0.48, 0.60, 0.40)[number % 3]
    red, green, blue = colorsys.hls_to_rgb((0.58 + number * _GOLDEN) % 1.0, lightness, 0.55)
    return f"#{round(255 * red):02x}{round(255 * green):02x}{round(255 * blue):02x}"
