"""Delta estimates: by how much moving a group would change the makespan, without simulating it.

For each op of the group it estimates when the op's inputs would be on the new device, when that device could start the
op, and how much later than their slack allows this makes three things: the op itself, the op that the device would run
next, and the op's children in other groups.

Legend: N ops, G groups, D devices, E edges.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from placeto.heuristics.local_search.neighbourhood import Neighbourhood
from placeto.plumbing.compiling import compiled
from placeto.problem.flat import FlatProblem
from placeto.simulator.kernel import Record, new_record
from placeto.simulator.readings.timelines import first_after


class Scratch(NamedTuple):
    """The schedule of the current placement, and arrays that `estimate` overwrites."""

    record: Record  # the schedule
    op_slack: np.ndarray  # (N,) us
    send_slack: np.ndarray  # (E,) us
    line_ptr: np.ndarray  # (D+1,) int64, where each device's ops begin in `line`; see `timelines`
    line: np.ndarray  # (N,) int64, ops that take time, by device and start
    guess: np.ndarray  # (N,) us, overwritten: estimated end of each op of the group
    marked: np.ndarray  # (G,) bool, for marking groups; all False between calls


@compiled(inner=True)
def new_scratch(flat: FlatProblem, near: Neighbourhood) -> Scratch:
    """Return uninitialised arrays for a problem and its groups; `marked` is all False."""
    n, record = len(near.group), new_record(flat)
    return Scratch(
        record,
        np.empty(len(record.start)),
        np.empty(len(record.send_start)),
        np.empty(len(flat.overhead_us) + 1, np.int64),
        np.empty(n, np.int64),
        np.empty(n),
        np.zeros(len(near.op_ptr) - 1, np.bool_),
    )


@compiled(inner=True)
def estimate(
    flat: FlatProblem, near: Neighbourhood, placement: np.ndarray, scratch: Scratch, group: int, device: int
) -> float:
    """Estimated change of the makespan in microseconds if a group moves to another device; negative = shorter.

    `scratch` must have the schedule of `placement` with its slacks and timelines.
    """
    record, slack, line, guess = scratch.record, scratch.op_slack, scratch.line, scratch.guess
    num_devices = len(flat.overhead_us)
    displaced, child_late, mean, total, gain, free = 0.0, 0.0, 0.0, 1e-9, 0.0, 0.0
    first, stop = scratch.line_ptr[device], scratch.line_ptr[device + 1]
    cursor = first
    for k in range(near.op_ptr[group], near.op_ptr[group + 1]):
        op = near.ops[k]
        ready = free
        for edge in range(near.in_ptr[op], near.in_ptr[op + 1]):
            parent, tensor = near.in_src[edge], near.in_tensor[edge]
            if near.group[parent] == group:
                arrival = guess[parent]
            else:
                arrival, source = record.finish[parent], placement[parent]
                if source != device:
                    link = source * num_devices + device
                    arrival += flat.latency_us[link] + flat.tensor_bytes[tensor] / flat.bandwidth[link]
            ready = max(ready, arrival)
        time = flat.op_time[op * num_devices + device]
        end = ready
        if time > 0.0:
            cursor = low = first_after(record.start, line, first, stop, cursor, ready)
            if low > first:
                end = max(end, record.finish[line[low - 1]] + flat.overhead_us[device])
            end += time
            free = end + flat.overhead_us[device]
            if low < stop:
                after = line[low]
                displaced = max(displaced, free - record.start[after] - slack[after])
        guess[op] = end
        mean += time * max(0.0, end - record.finish[op] - slack[op])
        total += time
        if slack[op] <= 0.001 * end:
            gain = max(gain, record.finish[op] - end)
        for edge in range(flat.out_ptr[op], flat.out_ptr[op + 1]):
            child = flat.out_child[edge]
            if near.group[child] != group:
                arrival, target = end, placement[child]
                if target != device:
                    link = device * num_devices + target
                    arrival += flat.latency_us[link] + flat.tensor_bytes[flat.out_tensor[edge]] / flat.bandwidth[link]
                child_late = max(child_late, arrival - record.start[child] - slack[child])
    return child_late + mean / total + displaced - gain
