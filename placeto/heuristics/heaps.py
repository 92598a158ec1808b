"""Many heaps in one set of arrays, compiled: pairing heaps (Fredman et al., 1986), whose nodes may change heaps.

A heap is identified by its root, the node with the least key; -1 = an empty heap. Keys are pairs (us, at), compared by
`us` first. After each change the caller keeps the new root.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from placeto.plumbing.compiling import compiled


class Heaps(NamedTuple):
    """The nodes of all heaps; there is room for M nodes."""

    us: np.ndarray  # (M,) float64, first part of each node's key
    at: np.ndarray  # (M,) int64, second part of each node's key
    child: np.ndarray  # (M,) int64, the first child of each node, -1 = none
    sibling: np.ndarray  # (M,) int64, the next child of the node's parent, -1 = none
    used: np.ndarray  # (1,) int64, number of nodes in use


@compiled(inner=True)
def new_heaps(most: int) -> Heaps:
    """Return arrays with room for `most` nodes; none is in use."""
    return Heaps(
        np.empty(most),
        np.empty(most, np.int64),
        np.empty(most, np.int64),
        np.empty(most, np.int64),
        np.zeros(1, np.int64),
    )


@compiled(inner=True)
def put_new(heaps: Heaps, root: int, us: float, at: int) -> int:
    """Put a new node with the key (us, at) into the heap with this root, and return the heap's new root."""
    node = heaps.used[0]
    heaps.used[0] += 1
    heaps.at[node] = at
    return put(heaps, root, node, us)


@compiled(inner=True)
def put(heaps: Heaps, root: int, node: int, us: float) -> int:
    """Put a node that is in no heap into the heap with this root, with a new `us`, and return the heap's new root."""
    heaps.us[node], heaps.child[node] = us, -1
    return _linked(heaps, root, node)


@compiled(inner=True)
def without_first(heaps: Heaps, root: int) -> int:
    """Take the root, the node with the least key, out of a heap that isn't empty, and return the new root or -1."""
    node, pairs = heaps.child[root], -1
    while node >= 0:
        second = heaps.sibling[node]
        following = heaps.sibling[second] if second >= 0 else -1
        node = _linked(heaps, node, second)
        heaps.sibling[node] = pairs
        pairs, node = node, following
    first = -1
    while pairs >= 0:
        following = heaps.sibling[pairs]
        first = _linked(heaps, first, pairs)
        pairs = following
    return first


@compiled(inner=True)
def _linked(heaps: Heaps, first: int, second: int) -> int:
    """Join two heaps, given by their roots (-1 = empty), and return the root of the joined heap."""
    if first < 0 or second < 0:
        return max(first, second)
    us, at = heaps.us, heaps.at
    if us[second] < us[first] or (us[second] == us[first] and at[second] < at[first]):
        first, second = second, first
    heaps.sibling[second], heaps.child[first] = heaps.child[first], second
    return first
