"""The steps of `placeto.problem.grouping` that visit every op, compiled: graphs have tens of thousands of ops.

Legend: N ops, E edges, T tensors, K kinds of ops, M modules, P pairs of neighbours, F (place, tensor, forward op).
"""

from __future__ import annotations

import heapq
from typing import NamedTuple

import numpy as np

from placeto.plumbing.compiling import compiled


class Origins(NamedTuple):
    """The origin of each op: its module, call and part, as numbers."""

    module: np.ndarray  # (N,) int64, number of the module
    call: np.ndarray  # (N,) int64, number of the call of the module
    part: np.ndarray  # (N,) int64, number of the weight whose gradient it makes, if several calls share it; else -1
    path_ptr: np.ndarray  # (M+1,) int64, offsets of each module's path
    path: np.ndarray  # int64, numbers of the names along each path


class Joining(NamedTuple):
    """Limits that decide when a unit joins a neighbour."""

    light: float  # it joins if its time is less than this share of its longest transfer
    largest: float  # the most work of a joined unit, in microseconds
    trifle: float  # the work may exceed `largest` if the unit adds less than this share of the neighbour's work
    fewest: int  # units are joined while there are more than this


@compiled()
def join_light(
    leader: np.ndarray,
    work: np.ndarray,
    heaviest: np.ndarray,
    time: np.ndarray,
    pairs: np.ndarray,
    travel: np.ndarray,
    origins: Origins,
    joining: Joining,
) -> int:
    """Join units whose work takes less time than their tensors travel to a neighbour, the lightest first.

    A unit joins the neighbour that is closest in the module tree, and of equally close ones the one with the longest
    transfer. Gradients of shared weights only join those of the same weight.

    Args:
        leader: (N,) int64, another op of the same unit, on the way to the unit's smallest op, its root; a root has
            itself. Changed, as are the next two.
        work: (N,) microseconds of each unit, at its root.
        heaviest: (N,) int64, the heaviest op of each unit, at its root.
        time: (N,) microseconds of each op.
        pairs: (2, P) int64, roots of units that exchange tensors, each pair once.
        travel: (P,) microseconds of the longest transfer between each pair.
        origins: the origin of each op.
        joining: the limits.

    Returns:
        How many units were joined to others.
    """
    num_ops, num_pairs = len(leader), pairs.shape[1]
    head, tail = np.full(num_ops, -1, np.int64), np.full(num_ops, -1, np.int64)  # a list of half-edges for each unit
    after, end, us = np.full(2 * num_pairs, -1, np.int64), np.empty(2 * num_pairs, np.int64), np.empty(2 * num_pairs)
    for p in range(num_pairs):
        for side in range(2):
            half, unit = 2 * p + side, pairs[side, p]
            end[half], us[half] = pairs[1 - side, p], travel[p]
            after[half] = head[unit]
            head[unit] = half
            if tail[unit] < 0:
                tail[unit] = half
    heap = [(work[op], op) for op in range(num_ops) if leader[op] == op]
    heapq.heapify(heap)
    count, joined = len(heap), 0
    met = np.full(num_ops, -1, np.int64)  # the half-edge from the current unit to each other unit
    while len(heap) > 0 and count - joined > joining.fewest:
        mine, unit = heapq.heappop(heap)
        if leader[unit] != unit or work[unit] != mine:
            continue
        longest = _tidy(unit, leader, head, tail, after, end, us, met)
        if longest < 0.0 or mine >= joining.light * longest:
            continue
        unit_op = heaviest[unit]
        best, best_near, best_us = -1, -1.0, -1.0
        half = head[unit]
        while half >= 0:
            neighbour = end[half]
            neighbour_op = heaviest[neighbour]
            fits = work[neighbour] + mine <= joining.largest or mine <= joining.trifle * work[neighbour]
            if fits and origins.part[unit_op] == origins.part[neighbour_op]:
                near = _affinity(origins, unit_op, neighbour_op)
                nearer = near > best_near or (near == best_near and us[half] > best_us)
                if nearer or (near == best_near and us[half] == best_us and neighbour < best):
                    best, best_near, best_us = neighbour, near, us[half]
            half = after[half]
        if best >= 0:
            kept, gone = min(unit, best), max(unit, best)
            leader[gone] = kept
            work[kept] += work[gone]
            a, b = heaviest[kept], heaviest[gone]
            if time[b] > time[a] or (time[b] == time[a] and b < a):
                heaviest[kept] = b
            after[tail[kept]] = head[gone]
            tail[kept] = tail[gone]
            joined += 1
            heapq.heappush(heap, (work[kept], kept))
    return joined


@compiled(inner=True)
def _tidy(
    unit: int,
    leader: np.ndarray,
    head: np.ndarray,
    tail: np.ndarray,
    after: np.ndarray,
    end: np.ndarray,
    us: np.ndarray,
    met: np.ndarray,
) -> float:
    """Keep one half-edge to each neighbour of a unit, with the longest time, and none to the unit itself.

    Returns the longest time of all, in microseconds, or -1.
    """
    last, longest, half = -1, -1.0, head[unit]
    head[unit] = -1
    while half >= 0:
        following, neighbour = after[half], end[half]
        while leader[neighbour] != neighbour:
            leader[neighbour] = leader[leader[neighbour]]
            neighbour = leader[neighbour]
        if neighbour != unit:
            end[half] = neighbour
            longest = max(longest, us[half])
            if met[neighbour] >= 0:
                us[met[neighbour]] = max(us[met[neighbour]], us[half])
            else:
                met[neighbour] = half
                if last < 0:
                    head[unit] = half
                else:
                    after[last] = half
                last = half
        half = following
    tail[unit] = last
    if last >= 0:
        after[last] = -1
    half = head[unit]
    while half >= 0:
        met[end[half]] = -1
        half = after[half]
    return longest


@compiled(inner=True)
def _affinity(origins: Origins, first: int, second: int) -> float:
    """How close two ops are in the module tree: 2 = same call, 1 = same module, else the share of common path."""
    a, b = origins.module[first], origins.module[second]
    if a == b:
        return 2.0 if origins.call[first] == origins.call[second] else 1.0
    start, begin = origins.path_ptr[a], origins.path_ptr[b]
    one_depth, other_depth = origins.path_ptr[a + 1] - start, origins.path_ptr[b + 1] - begin
    shared, least = 0, min(one_depth, other_depth)
    while shared < least and origins.path[start + shared] == origins.path[begin + shared]:
        shared += 1
    return shared / (1.0 + max(one_depth, other_depth))


class Reads(NamedTuple):
    """The inputs of backward ops, and the forward ops of the same call of a module that make or read these tensors."""

    ptr: np.ndarray  # (N+1,) int64, offsets of each op's inputs
    tensor: np.ndarray  # (E,) int64, tensor of each input
    backward: np.ndarray  # (N,) bool, ops of the backward pass
    forward: np.ndarray  # (F,) int64, forward ops, sorted by (place, tensor)
    first: np.ndarray  # (E,) int64, where in `forward` the forward ops of each input begin
    last: np.ndarray  # (E,) int64, where in `forward` they end
    kind: np.ndarray  # (N,) int64, number of the op's type
    alike: np.ndarray  # (K, K) bool, whether an op of the second kind may be the gradient of one of the first
    reader_ptr: np.ndarray  # (T+1,) int64, offsets of each tensor's readers
    reader: np.ndarray  # int64, ops that read each tensor; none for tensors with too many readers


@compiled()
def find_homes(reads: Reads) -> np.ndarray:
    """(N,) int64, the forward op that each backward op belongs to; -1 = unknown.

    It is the forward op that shares most tensors with the backward op, and of equal ones the one of a similar type. If
    several remain, it is the one to which another reader of one of the backward op's inputs belongs.
    """
    num_ops = len(reads.backward)
    plain, score = np.full(num_ops, -1, np.int64), np.zeros(num_ops)
    met = np.empty(num_ops, np.int64)  # forward ops with a score
    for op in range(num_ops):
        if not reads.backward[op]:
            continue
        count, best = _score(reads, op, score, met)
        num_homes = 0
        for k in range(count):
            if score[met[k]] == best:
                num_homes += 1
                plain[op] = met[k]
            score[met[k]] = 0.0
        if num_homes > 1:
            plain[op] = -1
    home = plain.copy()
    for op in range(num_ops):
        if plain[op] >= 0 or not reads.backward[op]:
            continue
        count, best = _score(reads, op, score, met)
        for e in range(reads.ptr[op], reads.ptr[op + 1]):
            tensor = reads.tensor[e]
            for r in range(reads.reader_ptr[tensor], reads.reader_ptr[tensor + 1]):
                other = plain[reads.reader[r]]
                if count > 0 and home[op] < 0 and other >= 0 and score[other] == best:
                    home[op] = other
        for k in range(count):
            score[met[k]] = 0.0
    return home


@compiled(inner=True)
def _score(reads: Reads, op: int, score: np.ndarray, met: np.ndarray) -> tuple[int, float]:
    """Fill `score` with the number of tensors that forward ops share with a backward op, plus 0.5 if they are alike.

    `met` gets the forward ops that have a score. Returns how many there are, and the largest score.
    """
    count, best = 0, 0.0
    for e in range(reads.ptr[op], reads.ptr[op + 1]):
        for k in range(reads.first[e], reads.last[e]):
            forward = reads.forward[k]
            if score[forward] == 0.0:
                met[count] = forward
                count += 1
            score[forward] += 1.0
    for k in range(count):
        if reads.alike[reads.kind[met[k]], reads.kind[op]]:
            score[met[k]] += 0.5
        best = max(best, score[met[k]])
    return count, best
