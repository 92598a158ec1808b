"""Which processor cores this process may use, on every system."""

from __future__ import annotations

import os


def cores() -> list[int]:
    """Numbers of the cores that this process may use; all of the machine where the system doesn't say (macOS)."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def pin(core: int) -> None:
    """Keep the calling thread on one core; nothing where the system has no such call (macOS)."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {core})
