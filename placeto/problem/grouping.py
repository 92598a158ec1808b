"""Colocation groups: thousands of ops become 30-300 decisions. The simulator still runs op by op.

Hard rules: ops that share a `colocation` id stay together (in a captured training step a parameter, its first user
and the op that makes its gradient), and parameters and ops of no cost join the first user or the producer. The rest
is judgement, in four steps (`group_ops`):

1. backward ops know the forward op they belong to: gradients of a weight that several calls share (steps of a
   recurrent network) are set apart, since nothing waits for them, all but their last sum;
2. an op that computes for less time than its tensors travel joins a neighbour, one of its own call of a module first,
   then one of its module, unless there are few groups already;
3. if there are many groups, calls of one module are joined in blocks;
4. if there are still too many, groups are joined along the edges that would carry most for the work they join.

No step makes a group larger than a share of all work, unless there is no other way.

What was tried stands in experiments/NOTES.md.

Legend: N ops, E edges, G groups, U units (groups in the making).
"""

from __future__ import annotations

import heapq
import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import numpy as np

from placeto.problem.coarsening import Units, coarsen, merge, neighbours, unit_edges, without_collector
from placeto.problem.graph import ComputationGraph
from placeto.problem.problem import PlacementProblem, check_problem

MAX_GROUPS = 200
_LIGHT = 0.2  # an op joins a neighbour if it takes less than this share of its largest tensor's transfer
_LARGEST = 0.06  # largest share of all work in one group, unless a hard rule makes it larger
_TRIFLE = 0.1  # what adds less than this share to a group may make it larger
_FEWEST = 30  # light ops are joined while there are more groups than this
_CALLED = 60  # calls of a module are joined in blocks while there are more groups than this


@dataclass(frozen=True, eq=False)
class Groups:
    """Which ops stay together. Groups are numbered by their first op in topological order."""

    group: np.ndarray  # (N,) int64, group of each op
    num_groups: int  # G
    modules: tuple[str, ...]  # (G,) module path of each group's heaviest op, "" where unknown
    sets: tuple[np.ndarray, ...]  # int64 arrays of group ids worth moving together: modules, subtrees, blocks of time

    def __post_init__(self) -> None:
        for array in (self.group, *self.sets):
            array.setflags(write=False)

    @cached_property
    def first_op(self) -> np.ndarray:
        """(G,) int64, the first op of each group."""
        return np.unique(self.group, return_index=True)[1]


def expand(groups: Groups, group_placement: np.ndarray) -> np.ndarray:
    """Placement (N,) of ops from a placement (G,) of groups.

    Raises:
        ValueError: not one device per group.
    """
    group_placement = np.asarray(group_placement)
    if group_placement.shape != (groups.num_groups,):
        raise ValueError(f"there are {groups.num_groups} groups, but the placement has shape {group_placement.shape}")
    return group_placement[groups.group]


@lru_cache(maxsize=256)
def group_ops(problem: PlacementProblem, max_groups: int = MAX_GROUPS) -> Groups:
    """Group the ops of a problem; cached. A graph without modules is only coarsened if it has too many ops.

    Args:
        problem: op times and link speeds say which ops are worth moving apart.
        max_groups: at most so many groups, unless hard rules (unconnected ops, a cap on a group's work) need more.

    Raises:
        ValueError: max_groups below 1.
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
    """Join groups until there are at most so many, as far as that is possible: a coarser view of the problem; cached.

    Raises:
        ValueError: max_groups below 1.
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
    """Split groups as far as the hard rules allow, but into no more parts in all than asked: a finer view; cached.

    Parts join along the edges within their group, the lightest first, until they are few enough. Where nothing connects
    them there stay more. The parts of each group, and of each of its sets, are sets of their own.

    Args:
        problem: as in `group_ops`.
        groups: which keep the hard rules, as those of `group_ops` and `join_groups` do.
        max_groups: at most so many parts; if there are as many groups, each stays whole.

    Raises:
        ValueError: max_groups below 1.
    """
    check_problem(problem)
    if max_groups < 1:
        raise ValueError(f"max_groups must be >= 1, not {max_groups}")
    units, of = Units(problem), groups.group.tolist()
    _join_hard(problem.graph, units)
    edges = unit_edges(problem, units)
    within = {
        root: {other: time for other, time in near.items() if of[other] == of[root]} for root, near in edges.items()
    }
    heap = [(units.work[root], root) for root in within]
    heapq.heapify(heap)
    while heap and units.count > max_groups:
        work, root = heapq.heappop(heap)
        if units.find(root) == root and units.work[root] == work and within[root]:
            other = max(within[root].items(), key=lambda pair: (pair[1], -pair[0]))[0]
            kept = merge(units, within, root, other)
            heapq.heappush(heap, (units.work[kept], kept))
    return _parts(problem.graph, units, groups)


def cut_groups(problem: PlacementProblem, groups: Groups, placement: np.ndarray) -> Groups:
    """Cut groups where a placement (N,) of ops does: what it has on one device of a group is a part; cached.

    What a heuristic places op by op can then be searched on from. The parts of each group, and of each of its sets, are
    sets of their own. If the placement keeps groups together, these are the groups.

    Args:
        problem: as in `group_ops`.
        groups: which keep the hard rules, as those of `group_ops` and `join_groups` do.
        placement: which keeps ops of one colocation id together.
    """
    return _cut_groups(problem, groups, np.ascontiguousarray(placement, np.int64).tobytes())


@lru_cache(maxsize=64)
def _cut_groups(problem: PlacementProblem, groups: Groups, placement: bytes) -> Groups:
    device = np.frombuffer(placement, np.int64)
    if np.array_equal(device[groups.first_op][groups.group], device):
        return groups
    units = Units(problem)
    first: dict[tuple[int, int], int] = {}
    _join_hard(problem.graph, units)
    for op, key in enumerate(zip(groups.group.tolist(), device.tolist(), strict=True)):
        units.join(first.setdefault(key, op), op)
    return _parts(problem.graph, units, groups)


def _parts(graph: ComputationGraph, units: Units, groups: Groups) -> Groups:
    """Units as parts of groups."""
    parts = _finish(graph, units, _labels(graph))
    home = np.empty(parts.num_groups, np.int64)  # (parts,) the group of each
    home[parts.group] = groups.group
    wholes = [np.flatnonzero(np.isin(home, whole)) for whole in (*np.arange(groups.num_groups), *groups.sets)]
    sets = {tuple(members.tolist()): None for members in (*parts.sets, *wholes)}
    usable = [np.array(members, np.int64) for members in sets if 2 <= len(members) < parts.num_groups]
    return replace(parts, sets=tuple(usable))


@dataclass(frozen=True)
class _Label:
    """Where an op comes from, as `placeto.capture.trace` writes it into names: ``module@call/grad/type_3``."""

    module: str
    call: int
    backward: bool
    base: str  # what is left of the name: the same for the same op of another call
    gradient: bool = False  # a gradient of a weight that several calls share

    @property
    def place(self) -> tuple[str, int]:
        """Module and call."""
        return self.module, self.call

    @property
    def part(self) -> tuple[str, str, bool]:
        """What is the same in all calls of a module."""
        return self.module, self.base, self.gradient


_NAME = re.compile(r"^(?:@(?P<call>\d+))?(?P<backward>/grad)?/(?P<base>[^/]+)$")


@lru_cache(maxsize=16)
def _labels(graph: ComputationGraph) -> tuple[_Label, ...]:
    labels = []
    for name, module in zip(graph.op_names, graph.modules, strict=True):
        rest = name.removeprefix(module) if module else f"/{name}"
        match = _NAME.match(rest)
        if match:
            labels.append(_Label(module, int(match["call"] or 0), match["backward"] is not None, match["base"]))
        else:
            labels.append(_Label(module, 0, False, name))
    return tuple(labels)


def _join_hard(graph: ComputationGraph, units: Units) -> None:
    first: dict[int, int] = {}
    for op, colour in enumerate(graph.colocation.tolist()):
        if colour >= 0:
            units.join(first.setdefault(colour, op), op)
    producers, consumers = neighbours(graph)
    colocated = (graph.colocation >= 0).tolist()
    for op in graph.topological_order.tolist():
        if units.time[op] > 0.0 or colocated[op]:
            continue
        if producers[op]:
            units.join(op, max(producers[op], key=lambda pair: pair[1])[0])
        elif consumers[op]:
            units.join(op, min(consumers[op])[0])


def _set_gradients_apart(graph: ComputationGraph, units: Units, labels: list[_Label]) -> None:
    """Mark the gradients of weights that several calls share; sums of them join what they add."""
    makers: dict[tuple[str, int], dict[int, int]] = defaultdict(dict)  # (module, call) -> tensor -> forward op
    users: dict[tuple[str, int], dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    tensors, outputs = graph.edge_tensor.tolist(), graph.output_ptr.tolist()
    inputs = np.searchsorted(graph.edge_dst, np.arange(graph.num_ops + 1)).tolist()
    kinds = {name: name.split(".")[-1].removeprefix("add").strip("_") for name in set(graph.op_types)}
    kind = [kinds[name] for name in graph.op_types]
    for op, label in enumerate(labels):
        if label.backward or graph.op_types[op] == "parameter":
            continue
        key = label.place
        for tensor in range(outputs[op], outputs[op + 1]):
            makers[key][tensor] = op
        for edge in range(inputs[op], inputs[op + 1]):
            users[key][tensors[edge]].append(op)
    home: dict[int, int] = {}  # backward op -> forward op
    unsure: list[tuple[int, list[int]]] = []
    by_gradient: dict[int, list[int]] = defaultdict(list)  # tensor -> backward ops at home that read it
    for op, label in enumerate(labels):
        if not label.backward:
            continue
        key = label.place
        score: dict[int, float] = defaultdict(float)
        for edge in range(inputs[op], inputs[op + 1]):
            maker = makers[key].get(tensors[edge])
            for forward in {*users[key].get(tensors[edge], ()), *([] if maker is None else [maker])}:
                score[forward] += 1.0
        for forward in score:
            score[forward] += 0.5 * (kind[forward] in kind[op])
        best = max(score.values(), default=0.0)
        candidates = [forward for forward, value in score.items() if value == best]
        if len(candidates) == 1:
            home[op] = candidates[0]
            for edge in range(inputs[op], inputs[op + 1]):
                by_gradient[tensors[edge]].append(op)
        else:
            unsure.append((op, candidates))
    for op, candidates in unsure:  # weight gradients: with the op that reads the same incoming gradient
        siblings = [s for edge in range(inputs[op], inputs[op + 1]) for s in by_gradient[tensors[edge]]]
        shared = [home[s] for s in siblings if home[s] in candidates]
        if shared:
            home[op] = shared[0]
    producers, consumers = neighbours(graph)
    weights = [{p for p, _ in producers[op] if graph.op_types[p] == "parameter"} for op in range(graph.num_ops)]
    for op, forward in home.items():
        if graph.flops[op] > 0 and weights[forward] and not weights[op] and consumers[op]:
            labels[op] = replace(labels[op], base=labels[forward].base, gradient=True)
    for op in graph.topological_order.tolist():
        label = labels[op]
        final = graph.colocation[op] >= 0 and not consumers[op]  # a gradient that stays with its parameter
        if label.backward and op not in home and producers[op] and not final:  # sums, slices and the like
            same = [p for p in producers[op] if labels[p[0]].backward and labels[p[0]].place == label.place]
            producer = max(same or producers[op], key=lambda pair: (pair[1], pair[0]))[0]
            if labels[producer].gradient:
                labels[op] = replace(label, base=labels[producer].base, gradient=True)
                units.join(op, producer)


def _join_light(problem: PlacementProblem, units: Units, labels: Sequence[_Label]) -> None:
    """Join what computes for less time than its tensors travel to a neighbour, the lightest first."""
    edges = unit_edges(problem, units)
    limit = _LARGEST * units.total
    heap = [(units.work[root], root) for root in edges]
    heapq.heapify(heap)
    while heap and units.count > _FEWEST:
        work, root = heapq.heappop(heap)
        if units.find(root) != root or units.work[root] != work or not edges[root]:
            continue
        if work >= _LIGHT * max(edges[root].values()):
            continue
        here = labels[units.heaviest[root]]
        options = [
            (_affinity(here, labels[units.heaviest[other]]), time, -other)
            for other, time in edges[root].items()
            if _may_join(here, labels[units.heaviest[other]])
            and (units.work[other] + work <= limit or work <= _TRIFLE * units.work[other])
        ]
        if options:
            other = -max(options)[2]
            kept = merge(units, edges, root, other)
            heapq.heappush(heap, (units.work[kept], kept))


def _may_join(one: _Label, other: _Label) -> bool:
    """Gradients of shared weights only join those of the same weight."""
    return one.part == other.part if one.gradient or other.gradient else True


def _affinity(one: _Label, other: _Label) -> float:
    """How close two ops stand in the module tree: 2 = same call, 1 = same module, else the shared part of the path."""
    if one.module == other.module:
        return 2.0 if one.call == other.call else 1.0
    a, b = one.module.split("."), other.module.split(".")
    shared = sum(1 for _ in _common(a, b))
    return shared / (1.0 + max(len(a), len(b)))


def _common(a: Iterable[Hashable], b: Iterable[Hashable]) -> Iterable[Hashable]:
    for x, y in zip(a, b, strict=False):
        if x != y:
            return
        yield x


def _join_calls(units: Units, labels: Sequence[_Label], max_groups: int) -> None:
    """Join the same part of neighbouring calls in blocks, the longest blocks needed and no longer."""
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
        size, last = -(-len(part) // -(-len(part) // block)), -1  # blocks of a part are as equal as can be
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
    """Sets of 2 to G-1 groups: parts through all calls, modules, subtrees of modules, and calls within these."""
    found: dict[tuple[Hashable, ...], list[int]] = defaultdict(list)
    for group, head in enumerate(heads):
        path = head.module.split(".") if head.module else []
        found["part", head.part].append(group)
        for depth in range(1, len(path) + 1):
            prefix = tuple(path[:depth])
            found["module", prefix].append(group)
            found["module", prefix, head.gradient].append(group)
            found["call", prefix, head.call].append(group)
    unique = {tuple(members): None for members in found.values() if 2 <= len(members) < len(heads)}
    return tuple(np.array(members, np.int64) for members in unique)
