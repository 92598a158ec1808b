"""Parameters and buffers that a step doesn't read, but that take memory on a device all the same.

Each parameter is an op of type "parameter" without cost, which no op reads. It is colocated with the first op of its
module. If the module has none, take the topmost module around the parameter that has no op in the step, such as an
expert without tokens, or a numbered block within it: the parameter is colocated with all else that this module, or
block, holds. The bytes of a buffer are counted with the first computing op of its module. If there is none, the buffer
is an op of type "buffer", colocated in the same way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from placeto.capture.building.op_builder import BufferValue, ParameterValue


def homes(idle: Sequence[BufferValue | ParameterValue], records: Sequence[Mapping[str, Any]]) -> list[int | str]:
    """The home of each: the number of the op that it is colocated with, or a name that colocated ones share.

    Args:
        idle: parameters and buffers that no op reads, in the module's order.
        records: the records of the ops of the step. Of a module's ops, those that compute are preferred to parameters.
    """
    first: dict[str, int] = {}
    for stands_for_parameter in (False, True):
        for op, record in enumerate(records):
            if (record["type"] == "parameter") == stands_for_parameter:
                first.setdefault(record["module"], op)
    busy = {".".join(path.split(".")[:depth]) for path in first for depth in range(1, path.count(".") + 2)}
    places: list[int | str] = []
    for tensor in idle:
        module = tensor.path.rpartition(".")[0]
        places.append(first[module] if module in first else _topmost(tensor.path, busy))
    return places


def _topmost(path: str, busy: set[str]) -> str:
    """The path of the topmost module without ops around a tensor, extended up to the first number from there on."""
    parts = path.split(".")[:-1]
    depth = next((d for d in range(1, len(parts) + 1) if ".".join(parts[:d]) not in busy), len(parts))
    numbered = next((d for d in range(depth, len(parts) + 1) if parts[d - 1].isdigit()), depth) if parts else 0
    return ".".join(parts[: max(depth, numbered)])
