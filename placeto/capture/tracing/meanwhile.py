"""Settings of torch that have another value while something is traced or run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

Value = TypeVar("Value")


@contextmanager
def meanwhile(put: Callable[[Value], object], value: Value, before: Value) -> Iterator[None]:
    """A context in which a setting has another value: calls `put(value)` at the start and `put(before)` at the end."""
    put(value)
    try:
        yield
    finally:
        put(before)
