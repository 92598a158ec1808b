"""The order of the published pipeline schedules: some forward passes, then one forward and one backward in turns.

A device first runs as many forward passes as it takes until the first backward pass comes back to it, and then one
forward and one backward pass in turns: 1F1B (Narayanan et al., SOSP 2019). Where it has several chunks of a micro-batch
it takes the micro-batches in rounds, in each of which all pass the first chunk, then all the second (Narayanan et al.,
SC 2021). Gradients of weights, for which nobody waits, run later by as many turns as the device has others before it,
so that all hold as many chunks as the first does (Qi et al., ICLR 2024, arXiv 2401.10241).

Each device keeps to its turn and waits for it. A device that takes whatever is ready instead is late for what all
others wait for, or holds more.

Legend: N ops, E edges, C chunks, D devices; chunks are those of `placeto.heuristics.bounded_orders`.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np

from placeto.compiling import compiled


@dataclass(frozen=True)
class Chunks:
    """What devices run of the forward pass of single micro-batches, with what the backward pass does for it there."""

    device: np.ndarray  # (C,) int64
    micro_batch: np.ndarray  # (C,) int64
    depth: np.ndarray  # (C,) int64, how often the micro-batch has changed devices before


def turns(chunks: Chunks, split: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of each chunk (C,) the turn of its device in which its forward pass runs, its backward pass, and what may wait.

    Args:
        chunks: of all devices.
        split: whether gradients of weights may run later than those for which other chunks wait.
    """
    forward, backward, deferred = (np.zeros(len(chunks.device)) for _ in range(3))
    stages = max(len(np.unique(chunks.device[chunks.micro_batch == batch])) for batch in np.unique(chunks.micro_batch))
    for device in np.unique(chunks.device):
        own = np.flatnonzero(chunks.device == device)
        depth = chunks.depth[own]
        batches, batch = np.unique(chunks.micro_batch[own], return_inverse=True)
        each = -(-len(own) // len(batches))
        in_round = -(-len(batches) // max(1, len(batches) // stages))
        later = max(0, stages - 1 - int(depth.min()))
        first = min((each - 1) * in_round + later * (2 if each > 1 and not split else 1), len(own) - 1)
        forward[own[np.lexsort((batch, depth, batch // in_round))]] = np.arange(len(own))
        backward[own[np.lexsort((batch, -depth, batch // in_round))]] = np.arange(len(own)) + first + 0.5
        deferred[own] = backward[own] + (stages - 1 - later + 0.25 if split else 0.0)
    return forward, backward, deferred


def in_turns(
    order: np.ndarray, ptr: np.ndarray, child: np.ndarray, place: np.ndarray, turn: np.ndarray, devices: int
) -> np.ndarray:
    """(N,) ops in an order in which each device keeps to its turns, but where the graph forbids it.

    Args:
        order: (N,) ops in an order that the graph allows, which decides within a turn.
        ptr: (N+1,) where the children of each op begin.
        child: (E,) ops that read them.
        place: (N,) devices.
        turn: (N,) of each op, NaN = as soon as what it reads is there.
        devices: how many there are.
    """
    _follow(order, ptr, child, turn)
    rank = np.argsort(order)
    listed = np.lexsort((rank, turn, place))
    starts = np.searchsorted(place[listed], np.arange(devices + 1))
    return _merged(ptr, child, listed, starts, np.argsort(np.lexsort((rank, turn))))


@compiled()
def _follow(order: np.ndarray, ptr: np.ndarray, child: np.ndarray, turn: np.ndarray) -> None:
    """Give ops without a turn that of the last op that they read, -1 where they read none."""
    free = np.isnan(turn)
    turn[free] = -1.0
    for op in order:
        for k in range(ptr[op], ptr[op + 1]):
            if free[child[k]]:
                turn[child[k]] = max(turn[child[k]], turn[op])


@compiled()
def _merged(ptr: np.ndarray, child: np.ndarray, listed: np.ndarray, starts: np.ndarray, rank: np.ndarray) -> np.ndarray:
    """(N,) all ops; where all lists wait for each other the first op by rank that may run goes before its list.

    Args:
        ptr: (N+1,) where the children of each op begin.
        child: (E,) ops that read them.
        listed: (N,) the ops of each device, in its order.
        starts: (D+1,) where the lists of devices begin.
        rank: (N,) of all ops.
    """
    ops = len(listed)
    by_rank, missing, done = np.argsort(rank), np.zeros(ops, np.int64), np.zeros(ops, np.bool_)
    for reader in child:
        missing[reader] += 1
    ready = [rank[op] for op in range(ops) if missing[op] == 0]
    heapq.heapify(ready)
    order, count, at = np.empty(ops, np.int64), 0, starts[:-1].copy()
    while count < ops:
        before = count
        for device in range(len(at)):
            while at[device] < starts[device + 1]:
                op = listed[at[device]]
                if not done[op]:
                    if missing[op] > 0:
                        break
                    count = _run(op, ptr, child, rank, missing, ready, done, order, count)
                at[device] += 1
        if count == before:
            op = by_rank[heapq.heappop(ready)]
            if not done[op]:
                count = _run(op, ptr, child, rank, missing, ready, done, order, count)
    return order


@compiled(inner=True)
def _run(
    op: int,
    ptr: np.ndarray,
    child: np.ndarray,
    rank: np.ndarray,
    missing: np.ndarray,
    ready: list[int],
    done: np.ndarray,
    order: np.ndarray,
    count: int,
) -> int:
    """Put an op next into the order; returns how many are there."""
    order[count], done[op] = op, True
    for k in range(ptr[op], ptr[op + 1]):
        missing[child[k]] -= 1
        if missing[child[k]] == 0:
            heapq.heappush(ready, rank[child[k]])
    return count + 1
