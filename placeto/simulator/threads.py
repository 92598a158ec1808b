"""How many threads torch and numba compute with.

Numba starts its threads with the first parallel kernel of a process, and then changes torch's number of threads. With
several threads, small tensors take ten times as long while other processes are busy, and gradients are rounded
differently. So numba's threads are started before torch's number is set, here and nowhere else.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import numba
from threadpoolctl import threadpool_limits


def set_threads(torch_threads: int, numba_threads: int | None = None) -> None:
    """Set the threads of torch, if it is imported, and of numba, which can't get more than it has; None = keep them."""
    cores = numba.get_num_threads()  # starts numba's threads
    if numba_threads is not None:
        numba.set_num_threads(min(numba_threads, cores))
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(torch_threads)


def start_threads() -> None:
    """Start numba's threads, unless they have been started. Torch keeps its number of threads."""
    torch = sys.modules.get("torch")
    before = torch.get_num_threads() if torch else 1
    numba.get_num_threads()  # starts numba's threads
    if torch and torch.get_num_threads() != before:
        torch.set_num_threads(before)


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
