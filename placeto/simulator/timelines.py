"""Kernels that read a schedule: who runs where after whom, and when a tensor or a gap would be there.

They are what estimates of a move are made of, in the delta estimates of the local searches and in observations.

Legend: N ops, S sends, D devices.
"""

from __future__ import annotations

import numpy as np

from placeto.compiling import compiled
from placeto.problem.flat import FlatProblems
from placeto.simulator.kernel import Record
from placeto.simulator.lowering import num_relays


@compiled(nogil=True)
def timelines(
    flat: FlatProblems, p: int, placement: np.ndarray, record: Record, num_sends: int, ptr: np.ndarray, line: np.ndarray
) -> None:
    """Fill `line` (N,) with the ops that take time by device and start, device d from ``ptr[d]`` to ``ptr[d + 1]``.

    Sums of gradients stand where `placement` has them, in the order in which the lowered problem starts them.
    """
    num_ops = flat.op_offset[p + 1] - flat.op_offset[p]
    num_devices, time0 = flat.device_offset[p + 1] - flat.device_offset[p], flat.time_offset[p]
    ptr[: num_devices + 1] = 0
    for op in range(num_ops):
        if flat.op_time[time0 + op * num_devices + placement[op]] > 0.0:
            ptr[placement[op] + 1] += 1
    for device in range(num_devices):
        ptr[device + 1] += ptr[device]
    fill = ptr[:-1].copy()
    for position in range(num_ops + num_relays(flat, p) + num_sends):
        op = record.order[position]
        if op < num_ops and flat.op_time[time0 + op * num_devices + placement[op]] > 0.0:
            line[fill[placement[op]]] = op
            fill[placement[op]] += 1


@compiled(nogil=True, inline="always")
def first_after(start: np.ndarray, line: np.ndarray, first: int, stop: int, cursor: int, ready: float) -> int:
    """Position in ``line[first:stop]`` of the first op that starts after `ready`, or `stop`.

    `cursor` is where the search begins, as a rule the last answer; it may be wrong.
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
