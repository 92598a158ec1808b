"""Compiles kernels at their first call on a machine, and keeps the result beside the source."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable
from typing import Any

from numba import njit
from numba.core import event

from placeto.plumbing import by_reference
from placeto.plumbing.kernel_cache import kernel_cache

COMPILING = (
    "compiling parts of the simulator, each when it is used for the first time after an installation or a change of "
    "the code: this can take a minute"
)


def compiled(*, inner: bool = False, **options: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that makes a kernel of a function: `numba.njit` with the same options for all kernels.

    numba compiles a function of numpy once for each set of options of the kernels that call it. A literal that a kernel
    passes to another kernel, such as 0, is a type of its own to numba, which compiles the other kernel once more for
    it. Numbers of numpy, such as `np.int64(0)`, are not. Kernels release Python's lock, and a division by zero is no
    error.

    Args:
        inner: whether only other kernels call the kernel. Then what Python needs to call it isn't compiled, and a call
            from Python would crash the process.
        options: further options of `numba.njit`.
    """
    options |= {"nogil": True, "error_model": "numpy", "no_cfunc_wrapper": True, "no_cpython_wrapper": inner}

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        kernel: Any = njit(**options)(function)
        kernel._cache = kernel_cache(kernel)
        return kernel

    return decorate


class _Compiling(event.Listener):
    """Logs `COMPILING`, once in a process, when numba begins to compile.

    Python collects no garbage while numba compiles: this would take an eighth of the time, since numba makes many
    objects.
    """

    def __init__(self) -> None:
        self.told = False
        self._depth, self._collects = 0, False  # a kernel is compiled while one that calls it is

    def on_start(self, event: event.Event) -> None:
        if not self.told:
            self.told = True
            logging.getLogger("placeto").warning(COMPILING)
        if self._depth == 0:
            self._collects = gc.isenabled()
            gc.disable()
        self._depth += 1

    def on_end(self, event: event.Event) -> None:
        self._depth -= 1
        if self._depth == 0 and self._collects:
            gc.enable()


by_reference.register()
LISTENER = _Compiling()
event.register("numba:compile", LISTENER)
