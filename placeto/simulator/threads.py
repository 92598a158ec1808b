"""How many threads torch and numba compute with.

Numba starts its threads with the first parallel kernel of a process and then sets torch's number, whatever that was:
small tensors on several threads take ten times as long where other processes are busy, and gradients are rounded in
another way. So numba's threads are started before torch's number is set, here and nowhere else.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import numba
from threadpoolctl import threadpool_limits


def set_threads(torch_threads: int, numba_threads: int | None = None) -> None:
    """How many threads torch has from now on, if it is imported already, and numba: at most its cores, None = all."""
    cores = numba.get_num_threads()  # starts them
    if numba_threads is not None:
        numba.set_num_threads(min(numba_threads, cores))
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(torch_threads)


def start_threads() -> None:
    """Start numba's threads, where they haven't been started; torch keeps the number that it has."""
    torch = sys.modules.get("torch")
    before = torch.get_num_threads() if torch else 1
    numba.get_num_threads()  # starts them
    if torch and torch.get_num_threads() != before:
        torch.set_num_threads(before)


@contextmanager
def one_thread() -> Iterator[None]:
    """Within it torch, where it is imported, and BLAS compute with one thread; what they had before comes back."""
    torch = sys.modules.get("torch")
    before = torch.get_num_threads() if torch else 1
    set_threads(1)
    try:
        with threadpool_limits(1, "blas"):
            yield
    finally:
        if torch:
            torch.set_num_threads(before)
