"""Joining groups that a placement has on one device, so that one move gives many groups another device.

The joined groups have the same placement, so a move of joined groups begins with the search's present placement, as in
the refinement of multilevel partitioners (V-cycles; Walshaw, "Multilevel refinement for combinatorial optimisation
problems", 2004).

Legend: N ops, G groups, P pairs of groups, S shares, C joined groups.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from placeto.heuristics.partition import group_transfers
from placeto.plumbing.array_kernels import stable_argsort
from placeto.plumbing.compiling import compiled
from placeto.problem.grouping import Groups
from placeto.problem.problem import PlacementProblem


class Coarsening:
    """Joins a problem's groups for one placement after another; work and transfers of groups are computed once."""

    def __init__(self, problem: PlacementProblem, groups: Groups) -> None:
        self.groups = groups
        self._work = np.bincount(groups.group, problem.op_time.mean(axis=1), groups.num_groups)
        self._pairs, self._time = group_transfers(problem, groups)

    def joined(self, placement: np.ndarray, counts: Sequence[int]) -> list[np.ndarray]:
        """Join groups that a placement has on one device, to each of S numbers of joined groups.

        The joined groups for one number are made of those for the number before. There are more joined groups than the
        number says if the groups of a device exchange too few tensors.

        Args:
            placement: (G,) int64, device of each group.
            counts: S numbers of joined groups, in falling order.

        Returns:
            For each number an array (G,) int64, the joined group of each group. Joined groups are numbered in the order
            of their first groups.
        """
        device = np.ascontiguousarray(placement, np.int64)
        return list(_joined(self._work, self._pairs, self._time, device, np.array(counts, np.int64)))

    def groups_on_one_device(self, placement: np.ndarray, count: int) -> Groups:
        """Join groups that a placement (G,) has on one device to `count` groups, and return these; see `joined`."""
        (joined,) = self.joined(placement, [count])
        return self.groups_of(joined)

    def groups_of(self, joined: np.ndarray) -> Groups:
        """Return the groups of ops that belong to joined groups (G,), without names of modules and without sets."""
        count = int(joined.max()) + 1
        return Groups(joined[self.groups.group], count, ("",) * count, ())


_WORK = 2.0  # largest work of a joined group, divided by the mean work if there are as many as there should be


@compiled()
def _joined(
    work: np.ndarray, pairs: np.ndarray, time: np.ndarray, device: np.ndarray, counts: np.ndarray
) -> np.ndarray:
    """Return (S, G) the joined group of each group, for each of `counts` (S,)."""
    num_groups = len(work)
    leader, weight, count = np.arange(num_groups), work.copy(), num_groups
    rows = np.empty((len(counts), num_groups), np.int64)
    for s in range(len(counts)):
        limit, before = _WORK * work.sum() / counts[s], 0
        while count > counts[s] and (count != before or limit < work.sum()):
            limit *= _WORK if count == before else 1.0
            before = count
            count = _matched(leader, weight, pairs, time, device, limit, count, counts[s])
        number, groups_left = np.empty(num_groups, np.int64), 0
        for g in range(num_groups):  # the leader of a joined group is its first group
            if leader[g] == g:
                number[g] = groups_left
                groups_left += 1
            rows[s, g] = number[leader[g]]
    return rows


@compiled(inner=True)
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
    """Join pairs of joined groups on one device, and return how many joined groups are left.

    Pairs with the longest transfers for their work come first. Each joined group is joined once at most.

    Args:
        leader: (G,) first group of each group's joined group; updated in place.
        weight: (G,) work of a joined group, at the index of its first group; updated in place.
        pairs: (P, 2) groups that exchange tensors.
        time: (P,) microseconds of the transfers between the two groups of a pair.
        device: (G,) device of each group.
        limit: largest work of a joined group.
        count: number of joined groups before.
        least: number of joined groups at which joining ends.
    """
    num_groups, key = len(leader), np.empty(len(pairs), np.int64)
    for p in range(len(pairs)):
        a, b = leader[pairs[p, 0]], leader[pairs[p, 1]]
        if a > b:
            a, b = b, a
        fits = a != b and device[a] == device[b] and weight[a] + weight[b] <= limit
        key[p] = a * num_groups + b if fits else -1
    order = stable_argsort(key)
    ends, cost, num_ends = np.empty(len(pairs), np.int64), np.empty(len(pairs)), 0
    total = 0.0
    for k in range(len(order)):
        p = order[k]
        if key[p] < 0:
            continue
        if num_ends == 0 or ends[num_ends - 1] != key[p]:
            ends[num_ends], total = key[p], 0.0
            num_ends += 1
        total += time[p]
        a, b = key[p] // num_groups, key[p] % num_groups
        cost[num_ends - 1] = (weight[a] + weight[b] + 1e-9) / (total + 1e-9)
    matched, leader_of = np.zeros(num_groups, np.bool_), np.arange(num_groups)
    for k in stable_argsort(cost[:num_ends]):
        a, b = ends[k] // num_groups, ends[k] % num_groups
        if count > least and not matched[a] and not matched[b]:
            matched[a] = matched[b] = True
            leader_of[b] = a
            weight[a] += weight[b]
            count -= 1
    for g in range(num_groups):
        leader[g] = leader_of[leader[g]]
    return count
