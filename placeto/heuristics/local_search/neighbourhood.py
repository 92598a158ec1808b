"""Which groups the local searches may move together: the members of sets, and neighbours.

Legend: N ops, G groups, S sets, M members of all sets together, A pairs of neighbouring groups (both ways).
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from placeto.heuristics.partition import group_transfers
from placeto.problem.grouping import Groups
from placeto.problem.grouping.group_arrays import group_arrays
from placeto.problem.problem import PlacementProblem


class Neighbourhood(NamedTuple):
    """Which ops and groups may be moved together, as flat arrays of int64."""

    group: np.ndarray  # (N,) group of each op
    op_ptr: np.ndarray  # (G+1,) offsets of each group's ops
    ops: np.ndarray  # (N,) by group, in topological order within it
    set_ptr: np.ndarray  # (S+1,) offsets of each set's members in `sets`
    sets: np.ndarray  # (M,) groups that are members, by set
    home_ptr: np.ndarray  # (G+1,) offsets of each group's memberships in the next two arrays
    home: np.ndarray  # (M,) sets that have the group, by group
    home_place: np.ndarray  # (M,) index of this membership in `sets`
    near_ptr: np.ndarray  # (G+1,) offsets of each group's neighbours in `near`
    near: np.ndarray  # (A,) groups with which the group exchanges tensors, by group


@lru_cache(maxsize=64)
def neighbourhood(problem: PlacementProblem, groups: Groups) -> Neighbourhood:
    """The neighbourhood of a problem's groups; cached.

    Its sets are those of `groups`, the chains of groups, and one set of all groups in topological order, of which
    searches mostly move windows.
    """
    pairs, _ = group_transfers(problem, groups)
    both = np.concatenate([pairs, pairs[:, ::-1]])
    both = both[np.lexsort((both[:, 1], both[:, 0]))]
    ids = np.arange(groups.num_groups + 1)
    every = [*groups.sets, *chains(problem, groups), ids[:-1]]
    sets = np.concatenate(every)
    set_ptr = np.cumsum([0, *map(len, every)])
    home_place = np.argsort(sets, kind="stable")
    return Neighbourhood(
        *group_arrays(problem.graph, groups)[:3],
        set_ptr=set_ptr,
        sets=sets,
        home_ptr=np.searchsorted(sets[home_place], ids),
        home=np.searchsorted(set_ptr, home_place, side="right") - 1,
        home_place=home_place,
        near_ptr=np.searchsorted(both[:, 0], ids),
        near=np.ascontiguousarray(both[:, 1]),
    )


def chains(problem: PlacementProblem, groups: Groups) -> list[np.ndarray]:
    """The chains of two or more groups, as long as possible.

    In a chain each group is the only successor of the group before it, which is its only predecessor.
    """
    graph = problem.graph
    ends = np.stack([groups.group[graph.edge_src], groups.group[graph.edge_dst]])
    arcs = np.unique(ends[:, ends[0] != ends[1]], axis=1)
    successors = np.bincount(arcs[0], minlength=groups.num_groups)
    predecessors = np.bincount(arcs[1], minlength=groups.num_groups)
    only = (successors[arcs[0]] == 1) & (predecessors[arcs[1]] == 1)
    following = dict(zip(arcs[0, only].tolist(), arcs[1, only].tolist(), strict=True))
    sequences = []
    for first in sorted(set(following) - set(following.values())):
        chain = [first]
        while chain[-1] in following:
            chain.append(following[chain[-1]])
        sequences.append(np.array(chain, np.int64))
    return sequences
