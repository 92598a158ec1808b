"""An order of ops in which every producer stands before its consumers.

Legend: N ops, E edges.
"""

from __future__ import annotations

import heapq

import numpy as np


def topological_order(num_ops: int, src: np.ndarray, dst: np.ndarray) -> np.ndarray:
    """Kahn's algorithm with a heap, so that ties go by op order; shorter than N if there is a cycle.

    >>> topological_order(3, np.array([2, 0]), np.array([0, 1])).tolist()
    [2, 0, 1]
    """
    children: list[list[int]] = [[] for _ in range(num_ops)]
    missing = [0] * num_ops
    for parent, child in zip(src.tolist(), dst.tolist(), strict=True):
        children[parent].append(child)
        missing[child] += 1
    ready = [i for i in range(num_ops) if missing[i] == 0]
    order = []
    while ready:
        op = heapq.heappop(ready)
        order.append(op)
        for child in children[op]:
            missing[child] -= 1
            if missing[child] == 0:
                heapq.heappush(ready, child)
    return np.array(order, np.int64)
