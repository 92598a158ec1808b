"""Python's search for unreachable cycles, while a step is captured and planned."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_SELDOM = 50_000, 20, 100


@contextmanager
def collected_seldom() -> Iterator[None]:
    """Within it Python searches for cycles more seldom.

    Graphs in the making are millions of records, and few cycles: planning an encoder of 24 layers on four devices took
    40 s of CPU time in place of 62 s, and 1.11 GB at most in place of 0.99 GB (one run each, on a busy machine).
    """
    before = gc.get_threshold()
    gc.set_threshold(*_SELDOM)
    try:
        yield
    finally:
        gc.set_threshold(*before)
