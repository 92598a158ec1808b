"""How kernels are compiled: at their first call on a machine, then kept beside the source."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from numba import njit
from numba.core import event

from placeto import by_reference, terminal
from placeto.kernel_files import kernel_files
from placeto.linking import Kernel, KernelCompiler


class _Inner(Kernel):
    """A kernel that only other kernels call."""

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        raise TypeError(f"{self.py_func.__qualname__} is a kernel that only kernels call")


def compiled(*, inner: bool = False, **options: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """`numba.njit` for kernels, without what only C programs would call: it takes a tenth of the time to compile.

    A literal as an argument of another kernel, such as 0, is a type of its own: numba compiles that kernel once more
    for it. `LONE` and the like, numbers of numpy, are not.

    Args:
        inner: only other kernels call it, so that what Python would call isn't compiled either: taking named tuples of
            arrays apart takes a sixth of the time to compile. Python that calls it gets a TypeError.
        options: of `numba.njit`.
    """
    options |= {"cache": True, "no_cfunc_wrapper": True, "no_cpython_wrapper": inner}

    def made(function: Callable[..., Any]) -> Callable[..., Any]:
        kernel: Any = njit(pipeline_class=KernelCompiler, **options)(function)
        kernel.__class__ = _Inner if inner else Kernel
        return kernel

    return made


def drop_stale_caches(folder: Path) -> bool:
    """Forget what was compiled from other kernel files: numba's cache does not see changes in imported files.

    What the files hold decides, not when they were written: that may lie in the future, or be the same for all. Where
    no file of the package has changed, nobody looks up which of them have a say: see `kernel_files`.

    Args:
        folder: of the package.

    Returns:
        Whether anything was to be forgotten.
    """
    stamp, before = folder / "__pycache__" / "kernels.sha256", ["", ""]
    with suppress(OSError, ValueError):
        before = stamp.read_text().split()
    everything = _digest(folder, sorted(folder.rglob("*.py")))
    if before[:1] == [everything]:
        return False
    kernels = _digest(folder, kernel_files(folder))
    stale = before[1:] != [kernels]
    with suppress(OSError):  # a folder that can't be written holds nothing that we compiled
        for index in folder.glob("**/*.nbi") if stale else ():
            index.unlink(missing_ok=True)
        stamp.parent.mkdir(exist_ok=True)
        made = stamp.with_suffix(f".{os.getpid()}")
        made.write_text(f"{everything}\n{kernels}\n")
        made.replace(stamp)
    return stale


def _digest(folder: Path, files: Iterable[Path]) -> str:
    digest = hashlib.sha256()
    for path in files:
        digest.update(repr((path.relative_to(folder).as_posix(), path.read_bytes())).encode())
    return digest.hexdigest()


class _Told(event.Listener):
    """Tells once that something is compiled, who wants to know."""

    def on_start(self, event: event.Event) -> None:
        while terminal.on_compiling:
            terminal.on_compiling.pop()()

    def on_end(self, event: event.Event) -> None:
        pass


drop_stale_caches(Path(__file__).parent)
by_reference.register()
event.register("numba:compile", _Told())
