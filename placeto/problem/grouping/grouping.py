"""Colocation groups: mostly 30 to 200 decisions remain of thousands of ops. The simulator still runs op by op.

Hard rules: ops that share a `colocation` id stay together (in a captured training step, a parameter and the op that
makes its gradient). By choice, a parameter also stays with its first user. Other ops without cost join their producer,
or their first user if they have none. The rest is done by rules of thumb, in four steps (`group_ops`):

1. each backward op is assigned to the forward op that it belongs to. Gradients of a weight that several calls share
   (steps of a recurrent network) get groups of their own, since no op waits for them, except for their last sum;
2. an op that computes for less time than its tensors travel joins a neighbour, unless there are few groups already. A
   neighbour of the same call of a module comes first, then one of the same module;
3. if there are many groups, calls of one module are joined in blocks;
4. if there are still too many, groups are joined along the edges that would carry most for the work that they join.

No step makes a group larger than a share of all work, unless there is no other way.

experiments/decisions/2026-11-21-other-placers-and-grouping.md says what else was tried.

Legend: N ops, E edges, G groups, U units (groups in the making).
"""

from __future__ import annotations

import heapq
import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import numpy as np

from placeto.problem.graph import ComputationGraph
from placeto.problem.graph.gradient_sums import colocation_groups
from placeto.problem.graph.label_values import BACKWARD_PASSES
from placeto.problem.grouping.coarsening import (
    Units,
    carries,
    coarsen,
    merge,
    neighbours,
    unit_edges,
    unit_pairs,
    without_collector,
)
from placeto.problem.grouping.grouping_kernels import Joining, Origins, Reads, find_homes, join_light
from placeto.problem.problem import PlacementProblem, check_problem

MAX_GROUPS = 200
_LIGHT = 0.2  # an op joins a neighbour if it takes less than this share of its longest transfer
_LARGEST = 0.06  # largest share of all work in one group, unless a hard rule makes it larger
_TRIFLE = 0.1  # an op that adds less than this share to a group may exceed `_LARGEST`
_FEWEST = 30  # light ops are joined while there are more groups than this
_SHARED = 1000  # if more ops share a tensor, it is no sign of which of them belong together
_CALLED = 60  # calls of a module are joined in blocks while there are more groups than this


@dataclass(frozen=True, eq=False)
class Groups:
    """Which ops stay together. Groups are numbered by their first op in topological order."""

    group: np.ndarray  # (N,) int64, group of each op
    num_groups: int  # G
    modules: tuple[str, ...]  # (G,) module path of each group's heaviest op, "" where unknown
    sets: tuple[np.ndarray, ...]  # int64 arrays of groups to move together: modules, subtrees of modules, calls

    def __post_init__(self) -> None:
        for array in (self.group, *self.sets):
            array.setflags(write=False)

    @cached_property
    def first_op(self) -> np.ndarray:
        """(G,) int64, the op of each group with the least index."""
        return np.unique(self.group, return_index=True)[1]


def expand(groups: Groups, group_placement: np.ndarray) -> np.ndarray:
    """Return the placements (..., N) of ops that follow from placements (..., G) of groups.

    Raises:
        ValueError: a placement doesn't have one device for each group.
    """
    group_placement = np.asarray(group_placement)
    if group_placement.shape[-1:] != (groups.num_groups,):
        raise ValueError(f"there are {groups.num_groups} groups, but the placement has shape {group_placement.shape}")
    return group_placement[..., groups.group]


@lru_cache(maxsize=256)
def group_ops(problem: PlacementProblem, max_groups: int = MAX_GROUPS) -> Groups:
    """Group the ops of a problem; cached.

    If no op has a module, only the hard rules apply, and groups are joined if there are too many of them.

    Args:
        problem: its op times and link speeds decide which ops are joined.
        max_groups: the largest number of groups.

    Raises:
        ValueError: max_groups is below 1.
    """
    check_problem(problem)
    if max_groups < 1:
        raise ValueError(f"max_groups must be >= 1, not {max_groups}")
    graph = problem.graph
    with without_collector():
        units = Units(problem)
        _join_hard(graph, units)
        labels = list(_labels(graph))
        if any(graph.modules):
            _set_gradients_apart(graph, units, labels)
            _join_light(problem, units, labels)
            _join_calls(units, labels, min(max_groups, _CALLED))
        coarsen(problem, units, max_groups)
        return _finish(graph, units, labels)


@lru_cache(maxsize=256)
def join_groups(problem: PlacementProblem, groups: Groups, max_groups: int) -> Groups:
    """Join groups until there are at most `max_groups`; cached. The result has coarser groups of the same problem.

    Raises:
        ValueError: max_groups is below 1.
    """
    check_problem(problem)
    if max_groups < 1:
        raise ValueError(f"max_groups must be >= 1, not {max_groups}")
    units = Units(problem)
    first: dict[int, int] = {}
    for op, group in enumerate(groups.group.tolist()):
        units.join(first.setdefault(group, op), op)
    coarsen(problem, units, max_groups)
    return _finish(problem.graph, units, _labels(problem.graph))


@lru_cache(maxsize=256)
def split_groups(problem: PlacementProblem, groups: Groups, max_groups: int) -> Groups:
    """Split groups into at most `max_groups` parts in all, as far as the hard rules allow; cached.

    It begins with the smallest parts that the hard rules allow, and joins them along the edges within their group, the
    lightest first, until there are few enough. If no edges connect them, more parts remain. The parts of each group are
    a set of the result, and so are the parts of each set of groups.

    Args:
        problem: as in `group_ops`.
        groups: groups that keep the hard rules, as those of `group_ops` and `join_groups` do.
        max_groups: the largest number of parts; with as many groups, each connected group stays whole.

    Raises:
        ValueError: max_groups is below 1.
    """
    check_problem(problem)
    if max_groups < 1:
        raise ValueError(f"max_groups must be >= 1, not {max_groups}")
    units, group_of = Units(problem), groups.group.tolist()
    _join_hard(problem.graph, units)
    edges = unit_edges(problem, units)
    within = {
        root: {neighbour: time for neighbour, time in near.items() if group_of[neighbour] == group_of[root]}
        for root, near in edges.items()
    }
    heap = [(units.work[root], root) for root in within]
    heapq.heapify(heap)
    while heap and units.count > max_groups:
        work, root = heapq.heappop(heap)
        if units.find(root) == root and units.work[root] == work and within[root]:
            neighbour = max(within[root].items(), key=lambda pair: (pair[1], -pair[0]))[0]
            kept = merge(units, within, root, neighbour)
            heapq.heappush(heap, (units.work[kept], kept))
    return _parts(problem.graph, units, groups)


def cut_groups(problem: PlacementProblem, groups: Groups, placement: np.ndarray) -> Groups:
    """Cut each group into parts, one for each device on which a placement (N,) has ops of the group; cached.

    A search by groups can then begin with a placement that a heuristic made op by op. The parts of each group are a set
    of the result, and so are the parts of each set of groups. If the placement cuts no group, `groups` are returned.

    Args:
        problem: as in `group_ops`.
        groups: groups that keep the hard rules, as those of `group_ops` and `join_groups` do.
        placement: (N,) device of each op; ops of one colocation id are on one device.
    """
    return _cut_groups(problem, groups, np.ascontiguousarray(placement, np.int64).tobytes())


@lru_cache(maxsize=64)
def _cut_groups(problem: PlacementProblem, groups: Groups, placement: bytes) -> Groups:
    device = np.frombuffer(placement, np.int64)
    if np.array_equal(device[groups.first_op][groups.group], device):
        return groups
    units = Units(problem)
    first: dict[tuple[int, int], int] = {}
    for op, key in enumerate(zip(groups.group.tolist(), device.tolist(), strict=True)):
        units.join(first.setdefault(key, op), op)
    return _parts(problem.graph, units, groups)


def _parts(graph: ComputationGraph, units: Units, groups: Groups) -> Groups:
    """Make `Groups` of units, each a part of one of `groups`. The parts of a group, and those of a set, are sets."""
    parts = _finish(graph, units, _labels(graph))
    home = np.empty(parts.num_groups, np.int64)  # (parts,), the group of each part
    home[parts.group] = groups.group
    wholes = [np.flatnonzero(np.isin(home, whole)) for whole in (*np.arange(groups.num_groups), *groups.sets)]
    sets = {tuple(members.tolist()): None for members in (*parts.sets, *wholes)}
    usable = [np.array(members, np.int64) for members in sets if 2 <= len(members) < parts.num_groups]
    return replace(parts, sets=tuple(usable))


@dataclass(frozen=True)
class _Label:
    """The origin of an op: its module, its call and pass from names such as ``module@call/grad/type_3``.

    If the graph has passes, they come before the names.
    """

    module: str
    call: int
    backward: bool
    base: str  # the rest of the name, which is equal for the same op in all calls
    gradient: bool = False  # whether it makes a gradient of a weight that several calls share

    @property
    def place(self) -> tuple[str, int]:
        """Module and call."""
        return self.module, self.call

    @property
    def part(self) -> tuple[str, str, bool]:
        """Module, base and gradient: equal for the same op in all calls of a module."""
        return self.module, self.base, self.gradient


_NAME = re.compile(r"^(?:@(?P<call>\d+))?(?P<backward>/grad)?/(?P<base>[^/]+)$")


@lru_cache(maxsize=16)
def _labels(graph: ComputationGraph) -> tuple[_Label, ...]:
    labels = []
    for name, module, known in zip(graph.op_names, graph.modules, graph.passes, strict=True):
        rest = name.removeprefix(module) if module else f"/{name}"
        match = _NAME.match(rest)
        if match:
            backward = known in BACKWARD_PASSES if known else match["backward"] is not None
            labels.append(_Label(module, int(match["call"] or 0), backward, match["base"]))
        else:
            labels.append(_Label(module, 0, False, name))
    return tuple(labels)


def _join_hard(graph: ComputationGraph, units: Units) -> None:
    first: dict[int, int] = {}
    kept = colocation_groups(graph)
    for op, colour in enumerate(kept.tolist()):
        if colour >= 0:
            units.join(first.setdefault(colour, op), op)
    producers, consumers = neighbours(graph)
    colocated = (kept >= 0).tolist()
    for op in graph.topological_order.tolist():
        if units.time[op] > 0.0 or colocated[op]:
            continue
        if producers[op]:
            units.join(op, max(producers[op], key=lambda pair: pair[1])[0])
        elif consumers[op]:
            units.join(op, min(consumers[op])[0])


def _set_gradients_apart(graph: ComputationGraph, units: Units, labels: list[_Label]) -> None:
    """Mark gradients of weights that several calls share. Ops that sum or slice them join their producer."""
    weight, backward = np.array(graph.op_types) == "parameter", np.array([label.backward for label in labels])
    home, kept = _homes(graph, labels, weight, backward), carries(graph)
    weighs = np.bincount(graph.edge_dst[kept & weight[graph.edge_src]], minlength=graph.num_ops) > 0
    used = np.bincount(graph.edge_src[kept], minlength=graph.num_ops) > 0
    for op in np.flatnonzero((home >= 0) & (graph.flops > 0) & used & weighs[home] & ~weighs).tolist():
        labels[op] = replace(labels[op], base=labels[home[op]].base, gradient=True)
    stays = (colocation_groups(graph) >= 0) & ~used  # gradients that stay with their parameter
    producers, _ = neighbours(graph)
    order = graph.topological_order
    for op in order[(backward & (home < 0) & ~stays)[order]].tolist():  # such as sums and slices of gradients
        label = labels[op]
        same = [p for p in producers[op] if labels[p[0]].backward and labels[p[0]].place == label.place]
        producer, _ = max(same or producers[op], key=lambda pair: (pair[1], pair[0]), default=(op, 0))
        if labels[producer].gradient:
            labels[op] = replace(label, base=labels[producer].base, gradient=True)
            units.join(op, producer)


def _homes(graph: ComputationGraph, labels: Sequence[_Label], weight: np.ndarray, backward: np.ndarray) -> np.ndarray:
    """(N,) the forward op that each backward op belongs to, or -1; see `find_homes`."""
    places: dict[tuple[str, int], int] = {}
    place = np.array([places.setdefault(label.place, len(places)) for label in labels])
    tensor, size = graph.edge_tensor, len(graph.output_bytes)
    maker = graph.producer
    forward = ~backward & ~weight
    made, read = np.flatnonzero(forward[maker]), np.flatnonzero(forward[graph.edge_dst])
    ops = np.concatenate([maker[made], graph.edge_dst[read]])
    keys = place[ops] * size + np.concatenate([made, tensor[read]])
    by_key = np.lexsort((ops, keys))
    ops, keys = ops[by_key], keys[by_key]
    new = (np.diff(keys, prepend=-1) != 0) | (np.diff(ops, prepend=-1) != 0)
    ops, keys = ops[new], keys[new]
    wanted = place[graph.edge_dst] * size + tensor
    first, last = np.searchsorted(keys, wanted, "left"), np.searchsorted(keys, wanted, "right")
    types = {name: number for number, name in enumerate(dict.fromkeys(graph.op_types))}
    kinds = [name.split(".")[-1].removeprefix("add").strip("_") for name in types]
    readers = np.argsort(tensor, kind="stable")
    readers = readers[np.bincount(tensor)[tensor[readers]] <= _SHARED]
    return find_homes(
        Reads(
            ptr=graph.input_ptr,
            tensor=tensor,
            backward=backward,
            forward=ops,
            first=first,
            last=np.where(last - first > _SHARED, first, last),
            kind=np.array([types[name] for name in graph.op_types]),
            alike=np.array([[one in other for other in kinds] for one in kinds]),
            reader_ptr=np.searchsorted(tensor[readers], np.arange(size + 1)),
            reader=graph.edge_dst[readers],
        )
    )


def _join_light(problem: PlacementProblem, units: Units, labels: Sequence[_Label]) -> None:
    """Join units that compute for less time than their tensors travel to a neighbour, the lightest first."""
    pairs, travel = unit_pairs(problem, units)
    leader, work, heaviest = np.array(units.leader), np.array(units.work), np.array(units.heaviest)
    joining = Joining(_LIGHT, _LARGEST * units.total, _TRIFLE, _FEWEST)
    units.count -= join_light(leader, work, heaviest, np.array(units.time), pairs, travel, _origins(labels), joining)
    units.leader, units.work, units.heaviest = leader.tolist(), work.tolist(), heaviest.tolist()


def _origins(labels: Sequence[_Label]) -> Origins:
    """Return the labels of ops as numbers, for kernels."""
    modules: dict[str, int] = {}
    parts: dict[tuple[str, str, bool], int] = {}
    names: dict[str, int] = {}
    calls: dict[int, int] = {}  # by number, since numbers in names may exceed int64
    module = [modules.setdefault(label.module, len(modules)) for label in labels]
    part = [parts.setdefault(label.part, len(parts)) if label.gradient else -1 for label in labels]
    paths = [[names.setdefault(name, len(names)) for name in path.split(".")] for path in modules]
    call = [calls.setdefault(label.call, len(calls)) for label in labels]
    ptr = np.cumsum([0, *map(len, paths)])
    return Origins(
        np.array(module),
        np.array(call),
        np.array(part),
        ptr,
        np.array([name for path in paths for name in path]),
    )


def _join_calls(units: Units, labels: Sequence[_Label], max_groups: int) -> None:
    """Join the same part of successive calls in blocks, which are no longer than `max_groups` requires."""
    parts: dict[tuple[str, str, bool], list[tuple[int, int]]] = defaultdict(list)  # -> (call, unit)
    for root in units.roots():
        label = labels[units.heaviest[root]]
        parts[label.part].append((label.call, root))
    longest = max(len(part) for part in parts.values())
    sizes = np.array([len(part) for part in parts.values()])
    block = 1 + bisect_left(range(1, longest), True, key=lambda block: int((-(-sizes // block)).sum()) <= max_groups)
    limit = _LARGEST * units.total
    for part in parts.values():
        part.sort()
        size, last = -(-len(part) // -(-len(part) // block)), -1  # blocks of a part have nearly equal lengths
        for position, (_, root) in enumerate(part):
            if position % size and units.work[last] + units.work[root] <= limit:
                last = units.join(last, root)
            else:
                last = root


def _finish(graph: ComputationGraph, units: Units, labels: Sequence[_Label]) -> Groups:
    number: dict[int, int] = {}
    for op in graph.topological_order.tolist():
        number.setdefault(units.find(op), len(number))
    group = np.array([number[units.find(op)] for op in range(graph.num_ops)], np.int64)
    heads = [labels[units.heaviest[root]] for root in number]
    return Groups(group, len(number), tuple(head.module for head in heads), _sets(heads))


def _sets(heads: Sequence[_Label]) -> tuple[np.ndarray, ...]:
    """Return sets of 2 to G-1 groups: a part in all its calls, a module, a subtree of modules, or a call of these."""
    members_of: dict[tuple[Hashable, ...], list[int]] = defaultdict(list)
    for group, head in enumerate(heads):
        path = head.module.split(".") if head.module else []
        members_of["part", head.part].append(group)
        for depth in range(1, len(path) + 1):
            prefix = tuple(path[:depth])
            members_of["module", prefix].append(group)
            members_of["module", prefix, head.gradient].append(group)
            members_of["call", prefix, head.call].append(group)
    unique = {tuple(members): None for members in members_of.values() if 2 <= len(members) < len(heads)}
    return tuple(np.array(members, np.int64) for members in unique)
