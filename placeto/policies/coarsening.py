"""Joining groups that a placement has on one device, to ever fewer: the views from which a search moves many at once.

Nothing of the placement is lost, so a move of joined groups begins where the search stands, as in the refinement of
multilevel partitioners (V-cycles; Walshaw, "Multilevel refinement for combinatorial optimisation problems", 2004).

Legend: N ops, G groups, P pairs of groups, S shares, C joined groups.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from placeto.compiling import compiled
from placeto.heuristics.partition import group_transfers
from placeto.problem.grouping import Groups
from placeto.problem.problem import PlacementProblem


class Coarsening:
    """A problem's groups, to be joined again and again."""

    def __init__(self, problem: PlacementProblem, groups: Groups) -> None:
        self.groups = groups
        self._work = np.bincount(groups.group, problem.op_time.mean(axis=1), groups.num_groups)
        self._pairs, self._time = group_transfers(problem, groups)

    def joined(self, placement: np.ndarray, counts: Sequence[int]) -> list[np.ndarray]:
        """(G,) the joined group of each group, by their first group, for each of several counts C, falling.

        Joined groups of one count are made of those of the count before. A joined group is on one device; where too few
        groups of a device exchange tensors, there are more joined groups than asked for.

        Args:
            placement: (G,) int64, device of each group.
            counts: joined groups.
        """
        device = np.ascontiguousarray(placement, np.int64)
        return list(_joined(self._work, self._pairs, self._time, device, np.array(counts, np.int64)))

    def groups_of(self, joined: np.ndarray) -> Groups:
        """Joined groups (G,) as groups of ops; they have no modules and no sets."""
        count = int(joined.max()) + 1
        return Groups(joined[self.groups.group], count, ("",) * count, ())


_WORK = 2.0  # of a joined group, at most, over the mean; the cap grows where it leaves too many
_GROWS = 4.0
_TIMES = 3


@compiled(nogil=True)
def _joined(
    work: np.ndarray, pairs: np.ndarray, time: np.ndarray, device: np.ndarray, counts: np.ndarray
) -> np.ndarray:
    """(S, G) the joined group of each group."""
    num_groups = len(work)
    leader, weight, count = np.arange(num_groups), work.copy(), num_groups
    rows = np.empty((len(counts), num_groups), np.int64)
    for s in range(len(counts)):
        limit, grown = _WORK * work.sum() / counts[s], 0
        while count > counts[s] and grown < _TIMES:
            before = count
            count = _matched(leader, weight, pairs, time, device, limit, count, counts[s])
            if count == before:
                limit, grown = _GROWS * limit, grown + 1
        number, found = np.empty(num_groups, np.int64), 0
        for g in range(num_groups):  # the leader of a joined group is its first group
            if leader[g] == g:
                number[g] = found
                found += 1
            rows[s, g] = number[leader[g]]
    return rows


@compiled(inner=True, nogil=True)
def _matched(
    leader: np.ndarray,
    weight: np.ndarray,
    pairs: np.ndarray,
    time: np.ndarray,
    device: np.ndarray,
    limit: float,
    count: int,
    least: int,
) -> int:
    """Join pairs of joined groups, those with the most transfer for their work first; returns how many are left.

    None is joined twice.

    Args:
        leader: (G,) first group of each group's joined group; changed.
        weight: (G,) work of the joined group, at its first group; changed.
        pairs: (P, 2).
        time: (P,) transfer.
        device: (G,).
        limit: of the work of a joined group.
        count: of joined groups.
        least: so many are enough.
    """
    num_groups, key = len(leader), np.empty(len(pairs), np.int64)
    for p in range(len(pairs)):
        a, b = leader[pairs[p, 0]], leader[pairs[p, 1]]
        if a > b:
            a, b = b, a
        fits = a != b and device[a] == device[b] and weight[a] + weight[b] <= limit
        key[p] = a * num_groups + b if fits else -1
    order = np.argsort(key, kind="mergesort")
    ends, cost, found = np.empty(len(pairs), np.int64), np.empty(len(pairs)), 0
    total = 0.0
    for k in range(len(order)):
        p = order[k]
        if key[p] < 0:
            continue
        if found == 0 or ends[found - 1] != key[p]:
            ends[found], total = key[p], 0.0
            found += 1
        total += time[p]
        a, b = key[p] // num_groups, key[p] % num_groups
        cost[found - 1] = (weight[a] + weight[b] + 1e-9) / (total + 1e-9)
    taken, into = np.zeros(num_groups, np.bool_), np.arange(num_groups)
    for k in np.argsort(cost[:found], kind="mergesort"):
        a, b = ends[k] // num_groups, ends[k] % num_groups
        if count > least and not taken[a] and not taken[b]:
            taken[a] = taken[b] = True
            into[b] = a
            weight[a] += weight[b]
            count -= 1
    for g in range(num_groups):
        leader[g] = into[leader[g]]
    return count
