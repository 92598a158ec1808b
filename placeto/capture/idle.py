"""Parameters and buffers that a step doesn't read, but that take memory on a device all the same.

Each parameter is an op of type "parameter" that no op reads, without cost. It stays with its module: with the first op
of the module itself, if there is one, else with all else of the topmost module around it that has no op in the step,
such as an expert without tokens, or of the block of that module. A buffer is counted with the module's first op; where
there is none it is an op of type "buffer".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

MOST_GROUPS = 32
"""Modules without ops are so many groups of ops at most, of about as many bytes each."""


class Idle(NamedTuple):
    """A parameter or buffer that no op reads."""

    path: str
    bytes: int
    is_parameter: bool


def homes(idle: Sequence[Idle], records: Sequence[Mapping[str, Any]]) -> list[int | str]:
    """Of each its home: the number of the op with which it stays, or a name for those that stay together.

    Args:
        idle: in the module's order.
        records: the records of the ops of the step; ops that compute go before parameters.
    """
    first: dict[str, int] = {}
    for stands_for_parameter in (False, True):
        for op, record in enumerate(records):
            if (record["type"] == "parameter") == stands_for_parameter:
                first.setdefault(record["module"], op)
    busy = {".".join(path.split(".")[:depth]) for path in first for depth in range(1, path.count(".") + 2)}
    found: list[int | str] = []
    for one in idle:
        module = one.path.rpartition(".")[0]
        found.append(first[module] if module in first else _topmost(one.path, busy))
    names = {home: 0 for home in found if isinstance(home, str)}
    if len(names) > MOST_GROUPS:
        for one, home in zip(idle, found, strict=True):
            if isinstance(home, str):
                names[home] += one.bytes
        total, before = max(sum(names.values()), 1), 0
        of = {}
        for name, size in names.items():
            of[name] = f"part {before * MOST_GROUPS // total}"
            before += size
        found = [of[home] if isinstance(home, str) else home for home in found]
    return found


def _topmost(path: str, busy: set[str]) -> str:
    """The shortest prefix of a path that no op's module begins with, and on to the first number in it."""
    parts = path.split(".")[:-1]
    depth = next((d for d in range(1, len(parts) + 1) if ".".join(parts[:d]) not in busy), len(parts))
    numbered = next((d for d in range(depth, len(parts) + 1) if parts[d - 1].isdigit()), depth) if parts else 0
    return ".".join(parts[: max(depth, numbered)])
