"""Placers that take no transfers into account, such as one device and random devices. All others should be better.

Legend: N ops, G groups, D devices.
"""

from __future__ import annotations

import numpy as np

from placeto.heuristics.rules import group_sum, group_times
from placeto.simulator.evaluator import Evaluator


def try_single(evaluator: Evaluator, seed: int) -> None:
    """All on one device: the fastest, or else the fastest that has the memory."""
    for device in np.argsort(evaluator.problem.alone_us, kind="stable"):
        evaluator.score_ops(np.full(evaluator.problem.num_ops, device))
        if evaluator.exhausted or evaluator.best_fits:
            break


def try_fastest(evaluator: Evaluator, seed: int) -> None:
    """Each group on the device that computes it fastest; of equally fast devices, the one with the least load."""
    problem, groups = evaluator.problem, evaluator.groups
    time = group_times(problem, groups)
    memory = group_sum(groups, problem.resident_bytes.astype(np.float64))
    load, used = np.zeros(problem.num_devices), np.zeros(problem.num_devices)
    placement = np.zeros(groups.num_groups, np.int64)
    for group in range(groups.num_groups):
        full = used + memory[group] > problem.cluster.memory
        device = int(np.lexsort((load, time[group], full))[0])  # the last key counts first
        placement[group] = device
        load[device] += time[group, device]
        used[device] += memory[group]
    evaluator.score(placement)


def try_random(evaluator: Evaluator, seed: int) -> None:
    """Each group on a random device; the best of as many placements as the budget allows, or one without a budget."""
    rng = np.random.default_rng(seed)
    unlimited = evaluator.limit is None and evaluator.seconds_limit is None
    while not evaluator.exhausted:
        evaluator.score(rng.integers(evaluator.problem.num_devices, size=evaluator.groups.num_groups))
        if unlimited:
            break


def try_roundrobin(evaluator: Evaluator, seed: int) -> None:
    """Groups in topological order, given to the devices one after the other, in rounds."""
    evaluator.score(np.arange(evaluator.groups.num_groups) % evaluator.problem.num_devices)
