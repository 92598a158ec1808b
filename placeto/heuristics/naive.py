"""Placers that hardly look at the graph: what everything else should beat.

Legend: N ops, G groups, D devices.
"""

from __future__ import annotations

import numpy as np

from placeto.cost import PlacementProblem
from placeto.grouping import group_ops
from placeto.heuristics.common import group_sum, group_times
from placeto.placer import Evaluator, PlacementResult, busy_us


def single(
    problem: PlacementProblem, *, simulations: int | None = None, seconds: float | None = None, seed: int = 0
) -> PlacementResult:
    """All on one device: the one that is fastest, unless only another has the memory."""
    evaluator = Evaluator(problem, group_ops(problem), simulations, seconds)
    for device in np.argsort(busy_us(problem), kind="stable"):
        evaluator.score_ops(np.full(problem.num_ops, device))
        if evaluator.exhausted or evaluator.best_fits:
            break
    return evaluator.result()


def fastest(
    problem: PlacementProblem, *, simulations: int | None = None, seconds: float | None = None, seed: int = 0
) -> PlacementResult:
    """Each group on the device that computes it fastest; equal devices take turns by load."""
    groups = group_ops(problem)
    evaluator = Evaluator(problem, groups, simulations, seconds)
    time = group_times(problem)
    memory = group_sum(groups, problem.graph.param_bytes * float(problem.param_multiplier))
    load, used = np.zeros(problem.num_devices), np.zeros(problem.num_devices)
    placement = np.zeros(groups.num_groups, np.int64)
    for group in range(groups.num_groups):
        full = used + memory[group] > problem.cluster.memory
        device = int(np.lexsort((load, time[group], full))[0])  # the last key counts first
        placement[group] = device
        load[device] += time[group, device]
        used[device] += memory[group]
    evaluator.score(placement)
    return evaluator.result()


def random(
    problem: PlacementProblem, *, simulations: int | None = None, seconds: float | None = None, seed: int = 0
) -> PlacementResult:
    """Each group on a device drawn at random; the best of as many draws as the budget allows, one without."""
    groups = group_ops(problem)
    evaluator = Evaluator(problem, groups, simulations, seconds)
    rng = np.random.default_rng(seed)
    unlimited = simulations is None and seconds is None
    while not evaluator.exhausted:
        evaluator.score(rng.integers(problem.num_devices, size=groups.num_groups))
        if unlimited:
            break
    return evaluator.result()


def roundrobin(
    problem: PlacementProblem, *, simulations: int | None = None, seconds: float | None = None, seed: int = 0
) -> PlacementResult:
    """Groups in topological order, dealt out to the devices in turn."""
    groups = group_ops(problem)
    evaluator = Evaluator(problem, groups, simulations, seconds)
    evaluator.score(np.arange(groups.num_groups) % problem.num_devices)
    return evaluator.result()
