"""How kernels are compiled: at their first call on a machine, then kept beside the source."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from pathlib import Path

from numba import njit
from numba.core import event

from placeto import terminal

compiled = partial(njit, cache=True, no_cfunc_wrapper=True)
"""`numba.njit` for kernels, without what only C programs would call: it takes a tenth of the time to compile.

A literal as an argument of another kernel, such as 0, is a type of its own: numba compiles that kernel once more for
it. `LONE` and the like, numbers of numpy, are not.
"""
_TAKEN_IN = (
    "compiling.py",
    "problem/flat.py",
    "problem/grouping_kernels.py",
    "simulator/*.py",
    "heuristics/**/*.py",
    "environment/*.py",
    "policies/*.py",
)
"""Files with kernels, with constants that kernels take in, and this one, which says how they are compiled."""


def _drop_stale_caches() -> None:
    """Forget compiled callers older than a kernel file: numba's cache does not see changes in imported files."""
    folder = Path(__file__).parent
    changed = max(path.stat().st_mtime for pattern in _TAKEN_IN for path in folder.glob(pattern))
    for index in folder.glob("**/*.nbi"):
        with suppress(OSError):
            if index.stat().st_mtime < changed:
                index.unlink()


class _Told(event.Listener):
    """Tells once that something is compiled, who wants to know."""

    def on_start(self, event: event.Event) -> None:
        while terminal.on_compiling:
            terminal.on_compiling.pop()()

    def on_end(self, event: event.Event) -> None:
        pass


_drop_stale_caches()
event.register("numba:compile", _Told())
