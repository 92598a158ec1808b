"""Kernels that read a schedule: the ops of each device in order of start, and the first of them after a given time.

Observations use them.

Legend: N ops, S sends, D devices.
"""

from __future__ import annotations

import numpy as np

from placeto.plumbing.compiling import compiled
from placeto.problem.flat import FlatProblem
from placeto.simulator.kernel import Record
from placeto.simulator.lowering import num_relays


@compiled(inner=True)
def timelines(
    flat: FlatProblem, placement: np.ndarray, record: Record, num_sends: int, ptr: np.ndarray, line: np.ndarray
) -> None:
    """Fill `line` (N,) with the ops that take time, by device and start, and `ptr` (D+1,) with each device's offsets.

    Sums of gradients are on the device that `placement` has for them, in the order of their starts after lowering.
    """
    num_ops, num_devices = len(flat.op_rank), len(flat.overhead_us)
    ptr[: num_devices + 1] = 0
    for op in range(num_ops):
        if flat.op_time[op * num_devices + placement[op]] > 0.0:
            ptr[placement[op] + 1] += 1
    for device in range(num_devices):
        ptr[device + 1] += ptr[device]
    fill = ptr[:-1].copy()
    for position in range(num_ops + num_relays(flat) + num_sends):
        op = record.order[position]
        if op < num_ops and flat.op_time[op * num_devices + placement[op]] > 0.0:
            line[fill[placement[op]]] = op
            fill[placement[op]] += 1


@compiled(inline="always")
def first_after(start: np.ndarray, line: np.ndarray, first: int, stop: int, cursor: int, ready: float) -> int:
    """Return the position, from `first` to `stop`, of the first op in `line` that starts after `ready`, or `stop`.

    The search begins at `cursor`, such as the last result. Any cursor from `first` to `stop` gives the right result.
    """
    low, high = cursor, stop
    if low > first and start[line[low - 1]] > ready:
        low = first
    while low < high:
        middle = (low + high) // 2
        if start[line[middle]] <= ready:
            low = middle + 1
        else:
            high = middle
    return low
