"""What kernels do with whole arrays, in place of numpy's functions, which take numba long to compile.

`np.argsort(..., kind="mergesort")` takes more than a second for each type of keys. `target[:] = source` has a message
with the shapes of both arrays, whose texts take two seconds. `np.searchsorted` takes half a second.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from placeto.plumbing.compiling import compiled

NONE: Any = np.int64(-1)
"""No device, op or other number; -1 would be a literal, a type of its own (see `compiled`)."""


@compiled(inner=True)
def stable_argsort(key: np.ndarray) -> np.ndarray:
    """Return the (N,) order in which keys (N,) ascend; equal keys keep their order. Keys are not NaN."""
    n = len(key)
    order, merged = np.arange(n), np.empty(n, np.int64)
    width = 1  # each run of so many is in order
    while width < n:
        for begin in range(0, n, 2 * width):
            middle, end = min(begin + width, n), min(begin + 2 * width, n)
            left, right = begin, middle
            for k in range(begin, end):
                if right == end or (left < middle and key[order[left]] <= key[order[right]]):
                    merged[k] = order[left]
                    left += 1
                else:
                    merged[k] = order[right]
                    right += 1
        order, merged = merged, order
        width *= 2
    return order


@compiled(inner=True)
def copy_into(target: np.ndarray, source: np.ndarray) -> None:
    """Copy (N,) numbers to the first N of `target`."""
    for i in range(len(source)):
        target[i] = source[i]


@compiled(inner=True)
def number_up_to(values: np.ndarray, count: int, limit: float) -> int:
    """Return how many of the first `count` values, which ascend, are at most `limit`."""
    low, high = 0, count
    while low < high:
        middle = (low + high) // 2
        if values[middle] <= limit:
            low = middle + 1
        else:
            high = middle
    return low
