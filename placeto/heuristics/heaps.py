"""Many heaps in one set of arrays, compiled: pairing heaps (Fredman et al., 1986), whose nodes may change heaps.

A heap is known by its root, the node with the least key; -1 = an empty heap. Keys are (us, at), the lesser first.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from placeto.compiling import compiled


class Heaps(NamedTuple):
    """The nodes of all heaps, M of them at most."""

    us: np.ndarray  # (M,) float64
    at: np.ndarray  # (M,) int64
    child: np.ndarray  # (M,) int64, the first child of each, -1 = none
    sibling: np.ndarray  # (M,) int64, the next child of its parent
    used: np.ndarray  # (1,) int64, how many nodes there are


@compiled()
def new_heaps(most: int) -> Heaps:
    """Room for so many nodes."""
    return Heaps(
        np.empty(most),
        np.empty(most, np.int64),
        np.empty(most, np.int64),
        np.empty(most, np.int64),
        np.zeros(1, np.int64),
    )


@compiled()
def put_new(heaps: Heaps, root: int, us: float, at: int) -> int:
    """Put a new node into a heap; returns its root."""
    node = heaps.used[0]
    heaps.used[0] += 1
    heaps.at[node] = at
    return put(heaps, root, node, us)


@compiled()
def put(heaps: Heaps, root: int, node: int, us: float) -> int:
    """Put a node that is in no heap into one, with a new key; returns its root."""
    heaps.us[node], heaps.child[node] = us, -1
    return _linked(heaps, root, node)


@compiled()
def without_first(heaps: Heaps, root: int) -> int:
    """The root of a heap of at least one node once that has left it."""
    node, pairs = heaps.child[root], -1
    while node >= 0:
        other = heaps.sibling[node]
        following = heaps.sibling[other] if other >= 0 else -1
        node = _linked(heaps, node, other)
        heaps.sibling[node] = pairs
        pairs, node = node, following
    first = -1
    while pairs >= 0:
        following = heaps.sibling[pairs]
        first = _linked(heaps, first, pairs)
        pairs = following
    return first


@compiled(inner=True)
def _linked(heaps: Heaps, one: int, other: int) -> int:
    """The root of two heaps that become one."""
    if one < 0 or other < 0:
        return max(one, other)
    us, at = heaps.us, heaps.at
    if us[other] < us[one] or (us[other] == us[one] and at[other] < at[one]):
        one, other = other, one
    heaps.sibling[other], heaps.child[one] = heaps.child[one], other
    return one
