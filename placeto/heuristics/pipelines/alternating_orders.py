"""The order of the published pipeline schedules: some forward passes, then one forward and one backward in turns.

A device first runs as many forward passes as it takes until the first backward pass comes back to it, and then one
forward and one backward pass in turns: 1F1B (Narayanan et al., SOSP 2019). If it has several chunks of a micro-batch,
it takes the micro-batches in rounds. In a round, all micro-batches pass the first chunk, then all pass the second, and
so on (Narayanan et al., SC 2021). Gradients of weights, for which no other chunk waits, run later by as many turns as
there are devices before this one in the pipeline. Then all devices hold as many chunks as the first one does (Qi et
al., ICLR 2024, arXiv 2401.10241).

Each device keeps to this order and waits for the next op in it. A device that ran any op that is ready instead would be
late with ops that all others wait for, or would hold more chunks.

Legend: N ops, E edges, C chunks, D devices; chunks are those of `placeto.heuristics.pipelines.bounded_orders`.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np

from placeto.plumbing.compiling import compiled


@dataclass(frozen=True)
class Chunks:
    """C chunks of all devices and micro-batches."""

    device: np.ndarray  # (C,) int64, the device that runs the chunk
    micro_batch: np.ndarray  # (C,) int64
    depth: np.ndarray  # (C,) int64, how often the micro-batch's forward pass changes devices before this chunk


def turns(chunks: Chunks, split: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Give each chunk's passes their turns: numbers by which a device sorts what it runs.

    Args:
        chunks: the chunks of all devices.
        split: whether gradients of weights may run later than gradients for which other chunks wait.

    Returns:
        Three arrays (C,) float64: the turns of each chunk's forward pass, of its backward pass, and of its gradients of
        weights.
    """
    forward, backward, deferred = (np.zeros(len(chunks.device)) for _ in range(3))
    stages = max(len(np.unique(chunks.device[chunks.micro_batch == batch])) for batch in np.unique(chunks.micro_batch))
    for device in np.unique(chunks.device):
        local = np.flatnonzero(chunks.device == device)
        depth = chunks.depth[local]
        batches, batch = np.unique(chunks.micro_batch[local], return_inverse=True)
        per_batch = -(-len(local) // len(batches))
        in_round = -(-len(batches) // max(1, len(batches) // stages))
        later = max(0, stages - 1 - int(depth.min()))
        first = min((per_batch - 1) * in_round + later * (2 if per_batch > 1 and not split else 1), len(local) - 1)
        forward[local[np.lexsort((batch, depth, batch // in_round))]] = np.arange(len(local))
        backward[local[np.lexsort((batch, -depth, batch // in_round))]] = np.arange(len(local)) + first + 0.5
        deferred[local] = backward[local] + (stages - 1 - later + 0.25 if split else 0.0)
    return forward, backward, deferred


def in_turns(
    order: np.ndarray, ptr: np.ndarray, child: np.ndarray, place: np.ndarray, turn: np.ndarray, devices: int
) -> np.ndarray:
    """(N,) all ops in an order in which each device keeps to its turns as far as the graph allows.

    Args:
        order: (N,) ops in an order that the graph allows. It decides between ops with equal turns.
        ptr: (N+1,) offsets of each op's children in `child`.
        child: (E,) ops that read each op's outputs.
        place: (N,) device of each op.
        turn: (N,) turn of each op, NaN = that of the last op that it reads; overwritten.
        devices: D.
    """
    _follow(order, ptr, child, turn)
    rank = np.argsort(order)
    listed = np.lexsort((rank, turn, place))
    starts = np.searchsorted(place[listed], np.arange(devices + 1))
    return _merged(ptr, child, listed, starts, np.argsort(np.lexsort((rank, turn))))


@compiled()
def _follow(order: np.ndarray, ptr: np.ndarray, child: np.ndarray, turn: np.ndarray) -> None:
    """Give each op without a turn the greatest turn of the ops that it reads, or -1 if it reads none."""
    free = np.isnan(turn)
    turn[free] = -1.0
    for op in order:
        for k in range(ptr[op], ptr[op + 1]):
            if free[child[k]]:
                turn[child[k]] = max(turn[child[k]], turn[op])


@compiled()
def _merged(ptr: np.ndarray, child: np.ndarray, listed: np.ndarray, starts: np.ndarray, rank: np.ndarray) -> np.ndarray:
    """Merge the lists of all devices into one order (N,) that the graph allows.

    If every list waits for an op of another one, the ready op with the least rank is taken out of turn.

    Args:
        ptr: (N+1,) offsets of each op's children in `child`.
        child: (E,) ops that read each op's outputs.
        listed: (N,) the ops of each device, in its order.
        starts: (D+1,) offsets of each device's ops in `listed`.
        rank: (N,) rank of each op, all different.
    """
    ops = len(listed)
    by_rank, missing, done = np.argsort(rank), np.zeros(ops, np.int64), np.zeros(ops, np.bool_)
    for reader in child:
        missing[reader] += 1
    ready = [rank[op] for op in range(ops) if missing[op] == 0]
    heapq.heapify(ready)
    order, count, cursor = np.empty(ops, np.int64), 0, starts[:-1].copy()
    while count < ops:
        before = count
        for device in range(len(cursor)):
            while cursor[device] < starts[device + 1]:
                op = listed[cursor[device]]
                if not done[op]:
                    if missing[op] > 0:
                        break
                    count = _run(op, ptr, child, rank, missing, ready, done, order, count)
                cursor[device] += 1
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
    """Append an op to the order, and put the children that it makes ready into the heap; returns the new length."""
    order[count], done[op] = op, True
    for k in range(ptr[op], ptr[op + 1]):
        missing[child[k]] -= 1
        if missing[child[k]] == 0:
            heapq.heappush(ready, rank[child[k]])
    return count + 1
