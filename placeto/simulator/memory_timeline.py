"""Memory over time: what `Schedule.peak_memory` is the peak of.

Legend: D devices, P points.
"""

from __future__ import annotations

import numpy as np

from placeto.problem.flat import LONE
from placeto.simulator.memory import event_us, lives
from placeto.simulator.schedule import Schedule


def memory_timelines(schedule: Schedule) -> list[tuple[np.ndarray, np.ndarray]]:
    """For each of D devices when its memory changes, (P,) float64 in us, and to how many bytes, (P,) int64.

    The first point is at 0, with the parameters, their gradients and the optimizer's state.
    """
    problem = schedule.problem
    low = schedule.lowering
    record = low.record
    born, ended, where, size = lives(low.flat, LONE, low.placement, record, schedule.num_sends)
    begin = np.array([event_us(event, record.start, record.send_finish) for event in born])
    end = np.array([event_us(event, record.finish, record.send_finish) for event in ended])
    resident = np.zeros(problem.num_devices, np.int64)
    np.add.at(resident, schedule.placement, problem.resident_bytes)
    found = []
    for device in range(problem.num_devices):
        own = (where == device) & (begin < end) & (size > 0)
        times = np.concatenate([[0.0], begin[own], end[own]])
        changes = np.concatenate([[resident[device]], size[own], -size[own]])
        points, group = np.unique(times, return_inverse=True)
        change = np.zeros(len(points), np.int64)
        np.add.at(change, group, changes)
        found.append((points, np.cumsum(change)))
    return found
