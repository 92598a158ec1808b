"""How many threads compute: those of torch, and those in which kernels simulate. Kernels release Python's lock.

With several threads, small tensors take ten times as long while other processes are busy, and gradients are rounded
differently.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache

import numba
from threadpoolctl import threadpool_limits

# The cores of this process, unless the variable of this name says otherwise.
_MOST: int = vars(numba.config)["NUMBA_NUM_THREADS"]
_number = [_MOST]


def threads() -> int:
    """Return the number of threads in which simulations may run."""
    return _number[0]


def set_threads(torch_threads: int, simulator_threads: int | None = None) -> None:
    """Set the threads of torch, if it is imported, and of simulations, at most one for each core; None = keep them."""
    if simulator_threads is not None:
        _number[0] = min(simulator_threads, _MOST)
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(torch_threads)


@contextmanager
def one_thread() -> Iterator[None]:
    """Let torch, if it is imported, and BLAS compute with one thread in the block; afterwards as before."""
    torch = sys.modules.get("torch")
    before = torch.get_num_threads() if torch else 1
    set_threads(1)
    try:
        with threadpool_limits(1, "blas"):
            yield
    finally:
        if torch:
            torch.set_num_threads(before)


@cache
def pool(purpose: str, number: int) -> ThreadPoolExecutor:
    """Return the pool of a number of threads for one purpose."""
    return ThreadPoolExecutor(number, f"placeto {purpose}")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=pool.cache_clear)  # threads don't exist in a forked process


def in_parts(work: Callable[[int, int], object], count: int, several: bool) -> None:
    """Call ``work(first, last)`` for ``range(count)``, or with `several` for a part of it in each thread."""
    parts = min(threads(), count) if several else 1
    ends = [count * part // parts for part in range(parts + 1)] if parts > 1 else [0, count]
    futures = [pool("rows", parts - 1).submit(work, *ends[part : part + 2]) for part in range(1, parts)]
    work(*ends[:2])
    for future in futures:
        future.result()
