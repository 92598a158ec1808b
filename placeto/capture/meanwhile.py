"""Settings of torch that have another value while something is traced or run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

Value = TypeVar("Value")


@contextmanager
def meanwhile(put: Callable[[Value], object], value: Value, before: Value) -> Iterator[None]:
    """Put a value, and when this is closed the one from before."""
    put(value)
    try:
        yield
    finally:
        put(before)
