"""Compiles kernels at their first call on a machine, and keeps the result beside the source."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from numba import njit
from numba.core import event

from placeto import by_reference, terminal
from placeto.kernel_cache import kernel_cache
from placeto.kernel_files import digest_of_kernels
from placeto.linking import Kernel, KernelCompiler


class _Inner(Kernel):
    """A kernel that only other kernels call."""

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        raise TypeError(f"{self.py_func.__qualname__} is a kernel that only kernels call")


def compiled(*, inner: bool = False, **options: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that makes a kernel of a function: `numba.njit`, without its wrapper for C.

    That wrapper would take a tenth of the time to compile. A literal that a kernel passes to another kernel, such as 0,
    is a type of its own to numba, which compiles the other kernel once more for it. Numbers of numpy, such as `LONE`,
    are not.

    Args:
        inner: whether only other kernels call the kernel. Then the wrapper for Python isn't compiled either: in it,
            taking named tuples of arrays apart takes a sixth of the time to compile. If Python calls the kernel, it
            gets a TypeError.
        options: options of `numba.njit`.
    """
    options |= {"no_cfunc_wrapper": True, "no_cpython_wrapper": inner}

    def made(function: Callable[..., Any]) -> Callable[..., Any]:
        kernel: Any = njit(pipeline_class=KernelCompiler, **options)(function)
        kernel.__class__ = _Inner if inner else Kernel
        kernel._cache = kernel_cache(function, _ORIGIN)
        return kernel

    return made


_ORIGIN = digest_of_kernels(Path(__file__).parent)


class _Told(event.Listener):
    """Calls each function in `terminal.on_compiling`, once, when numba begins to compile."""

    def on_start(self, event: event.Event) -> None:
        while terminal.on_compiling:
            terminal.on_compiling.pop()()

    def on_end(self, event: event.Event) -> None:
        pass


by_reference.register()
event.register("numba:compile", _Told())
