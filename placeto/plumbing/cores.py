"""Which processor cores this process may use, on every system."""

from __future__ import annotations

import os


def cores() -> list[int]:
    """Return the numbers of the cores that this process may use; of all cores if the system doesn't say (macOS)."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def pin(core: int) -> None:
    """Keep the calling thread on one core; do nothing if the system has no call for it (macOS)."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {core})
