"""Kernels that only other kernels call."""

from collections.abc import Callable
from typing import Any

from numba import njit


def from_python(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """The kernel as Python can call it: a direct call would crash the process."""
    return njit(lambda *arguments: kernel(*arguments))
