"""Ideals of the units of a stream: sets of units that, with each unit, have all units that come before it.

A contiguous split is a chain of ideals, each within the next. Each device has the units that one ideal of the chain has
beyond the ideal before it.

Legend: U units, I ideals.
"""

from __future__ import annotations

import numpy as np

from placeto.heuristics.throughput.stream import Stream

MOST_IDEALS, MOST_MEMBERS = 300_000, 10**8
"""Upper limits of the number of ideals that are enumerated, and of ideals x units. This takes about 2 seconds."""


def all_ideals(stream: Stream) -> np.ndarray | None:
    """(I, U) bool, all ideals, smaller ones first; None if there are too many."""
    count = stream.num_units
    most = min(MOST_IDEALS, MOST_MEMBERS // count)
    needs, feeds = [0] * count, list[list[int]]([] for _ in range(count))
    for first, user in stream.before.tolist():
        needs[user] |= 1 << first
        feeds[first].append(user)
    ideals, layer = [0], {0: sum(1 << unit for unit in range(count) if not needs[unit])}  # ideal -> units to add
    while layer:
        following: dict[int, int] = {}
        for ideal, ready in layer.items():
            to_add = ready
            while to_add:
                unit_bit = to_add & -to_add
                to_add ^= unit_bit
                if (grown := ideal | unit_bit) not in following:
                    freed = sum(1 << user for user in feeds[unit_bit.bit_length() - 1] if not needs[user] & ~grown)
                    following[grown] = (ready ^ unit_bit) | freed
            if len(ideals) + len(following) > most:
                return None
        ideals += following
        layer = following
    return _unpacked(ideals, count)


def some_ideals(stream: Stream, orders: int, seed: int) -> np.ndarray:
    """(I, U) bool, the ideals that are beginnings of some topological orders, drawn at random; smaller ones first."""
    rng, ideals = np.random.default_rng(seed), dict[int, None]()
    for _ in range(orders):
        ideal = 0
        ideals[0] = None
        for unit in _order(stream, rng):
            ideal |= 1 << unit
            ideals[ideal] = None
    return _unpacked(sorted(ideals, key=int.bit_count), stream.num_units)


def _order(stream: Stream, rng: np.random.Generator) -> list[int]:
    """Draw a topological order, depth first: units that the last unit has made ready come next, in random order."""
    count = stream.num_units
    waits = np.bincount(stream.before[:, 1], minlength=count)
    feeds = list[list[int]]([] for _ in range(count))
    for first, user in stream.before.tolist():
        feeds[first].append(user)
    ready, order = rng.permutation(np.flatnonzero(waits == 0)).tolist(), []
    while ready:
        order.append(unit := ready.pop())
        for user in rng.permutation(feeds[unit]).astype(np.int64).tolist():
            waits[user] -= 1
            if waits[user] == 0:
                ready.append(user)
    return order


def _unpacked(ideals: list[int], count: int) -> np.ndarray:
    width = -(-count // 8)
    packed = np.frombuffer(b"".join(ideal.to_bytes(width, "little") for ideal in ideals), np.uint8)
    return np.unpackbits(packed.reshape(len(ideals), width), axis=1, count=count, bitorder="little").astype(bool)
