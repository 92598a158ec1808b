"""The topological order of ops, their longest paths, and their time on one device, compiled: there may be many ops.

Legend: N ops, E edges, D devices.
"""

from __future__ import annotations

import heapq

import numpy as np

from placeto.plumbing.compiling import compiled


def sorted_ops(num_ops: int, src: np.ndarray, dst: np.ndarray) -> np.ndarray:
    """(N,) int64, the topological order in which the ready op with the least number always comes next.

    If there is a cycle, the ops on it and after it are missing.

    Args:
        num_ops: N.
        src: (E,) int64, the producer of each edge.
        dst: (E,) int64, the consumer of each edge.
    """
    by_src = np.argsort(src, kind="stable")
    ptr = np.searchsorted(src[by_src], np.arange(num_ops + 1))
    return _first_ready(ptr, dst[by_src], np.bincount(dst, minlength=num_ops))


@compiled()
def _first_ready(ptr: np.ndarray, child: np.ndarray, missing: np.ndarray) -> np.ndarray:
    """(N,) int64, the order of `sorted_ops`.

    Args:
        ptr: (N+1,) int64, offsets of each op's consumers in `child`.
        child: (E,) int64, consumer of each edge, sorted by producer.
        missing: (N,) int64, how many edges lead into each op; changed.
    """
    ready = [op for op in range(len(missing)) if missing[op] == 0]
    order, count = np.empty(len(missing), np.int64), 0
    while len(ready) > 0:
        op = heapq.heappop(ready)
        order[count] = op
        count += 1
        for k in range(ptr[op], ptr[op + 1]):
            missing[child[k]] -= 1
            if missing[child[k]] == 0:
                heapq.heappush(ready, child[k])
    return order[:count]


@compiled()
def fill_paths(order: np.ndarray, ptr: np.ndarray, child: np.ndarray, time: np.ndarray, path: np.ndarray) -> None:
    """Make `path` (N,), the time of the last op of a path, the longest path from the start of each op.

    Args:
        order: (N,) int64, a topological order.
        ptr: (N+1,) int64, offsets of each op's consumers in `child`.
        child: (E,) int64, consumer of each edge, sorted by producer.
        time: (N,) us of each op that isn't the last one.
        path: (N,) us; changed.
    """
    for place in range(len(order) - 1, -1, -1):
        op = order[place]
        for k in range(ptr[op], ptr[op + 1]):
            path[op] = max(path[op], time[op] + path[child[k]])


@compiled()
def fill_alone(time: np.ndarray, overhead: np.ndarray, launch: np.ndarray, alone: np.ndarray) -> None:
    """Fill `alone` (D,), the us in which each device runs all ops, added up in the order of the simulator.

    Args:
        time: (N, D) us of each op on each device, in the order in which they run.
        overhead: (D,) us after each op that takes time.
        launch: (D,) us in which the host launches such an op, one after the other.
        alone: (D,) us; changed.
    """
    for device in range(len(alone)):
        free = launched = end = 0.0
        for op in range(len(time)):
            end = free + time[op, device]
            if time[op, device] > 0.0:
                end += overhead[device]
                launched += launch[device]
            free = max(end, launched)
        alone[device] = end
