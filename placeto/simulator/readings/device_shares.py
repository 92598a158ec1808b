"""The share of a step for which each device computes, sends without computing, or waits.

Legend: D devices, I intervals.
"""

from __future__ import annotations

import numpy as np

from placeto.simulator.schedule import Schedule


def device_shares(schedule: Schedule) -> np.ndarray:
    """(D, 3) float64, shares of the makespan that sum to 1: busy, sending and waiting.

    A device is busy while it computes an op, and for the overhead after it, as in `Schedule.busy_us`. It is sending
    while it isn't busy and a tensor is on its way from it. It is waiting for the rest of the step: for inputs, for its
    host to launch an op, or for the end.
    """
    problem, makespan = schedule.problem, schedule.makespan_us
    shares = np.zeros((problem.num_devices, 3))
    shares[:, 2] = 1.0
    if makespan == 0.0:
        return shares
    takes = schedule.finish_us > schedule.start_us
    ends = schedule.finish_us + problem.cluster.overhead_us[schedule.placement]
    for device in range(problem.num_devices):
        runs, sent = takes & (schedule.placement == device), schedule.send_src == device
        begin = np.concatenate([schedule.start_us[runs], schedule.send_start_us[sent]])
        end = np.concatenate([ends[runs], schedule.send_finish_us[sent]])
        busy = float(schedule.busy_us[device])
        sending = max(0.0, _covered(begin, end) - busy)
        shares[device] = busy / makespan, sending / makespan, max(0.0, 1.0 - (busy + sending) / makespan)
    return shares


def _covered(begin: np.ndarray, end: np.ndarray) -> float:
    """Length of the union of intervals from `begin` (I,) to `end` (I,)."""
    order = np.argsort(begin, kind="stable")
    begin, reached = begin[order], np.maximum.accumulate(end[order])
    before = np.concatenate([[-np.inf], reached[:-1]])[: len(begin)]
    return float(np.maximum(0.0, reached - np.maximum(begin, before)).sum())
