"""How many devices of a cluster are worth using: the step on one, on two, on four, and on all of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from placeto.problem.cluster.subclusters import halves, subclusters
from placeto.problem.subproblem import on_devices
from placeto.simulator.single_device import best_single

if TYPE_CHECKING:
    from placeto.placers import Placer
    from placeto.problem.cluster import Cluster
    from placeto.problem.problem import PlacementProblem

WORTH = 0.05
"""Share of the step that more devices must save to be worth using."""


class DeviceCount(NamedTuple):
    """The best step that was found on `devices` devices or fewer."""

    devices: int
    makespan_us: float
    fits: bool


def device_counts(
    problem: PlacementProblem, placer: Placer, simulations: int, known_us: float, known_fits: bool
) -> list[DeviceCount]:
    """Place on 1, 2, 4, ... of the closest and fastest devices, and on all devices, each time with a budget.

    For all devices, a placement that is known already counts too: `known_us` is its makespan, and `known_fits` says
    whether it fits. If fewer devices give a better step, this step counts for more devices as well.
    """
    counts, best = [], (True, float("inf"))
    for devices in device_sets(problem.cluster):
        part = problem if len(devices) == problem.num_devices else on_devices(problem, devices)
        if len(devices) == 1:
            alone = best_single(problem)
            known = (alone is None, problem.single_device_us if alone is None else alone.makespan_us)
        else:
            result = placer(part, simulations=simulations)
            known = (not result.fits, result.makespan_us)
        if len(devices) == problem.num_devices:
            known = min(known, (not known_fits, known_us))
        best = min(best, known)
        counts.append(DeviceCount(len(devices), float(best[1]), not best[0]))
    return counts


def device_sets(cluster: Cluster) -> list[tuple[int, ...]]:
    """Return the devices to use, if they are to be 1, 2, 4, ..., or all of them.

    They are a part of the cluster that `subclusters` or `halves` gives, or else the fastest devices.

    >>> from placeto import load_cluster
    >>> device_sets(load_cluster("2xv100+2xp100"))
    [(0,), (0, 1), (0, 1, 2, 3)]
    """
    peak = np.array([device.peak() for device in cluster.devices])
    fastest = np.argsort(-peak, kind="stable").tolist()
    parts = [*subclusters(cluster), *halves(cluster)]
    sets, count = [], 1
    while count < cluster.num_devices:
        of_size = [part for part in parts if len(part) == count]
        own = max(of_size, key=lambda part: peak[list(part)].sum(), default=tuple(sorted(fastest[:count])))
        sets.append(own)
        count *= 2
    return [*sets, tuple(range(cluster.num_devices))]


def worth_using(counts: Sequence[DeviceCount]) -> int:
    """Return the least number of devices beyond which more of them save at most `WORTH` of the step.

    If the step fits on all devices, it must also fit on this number of them.
    """
    last = counts[-1]
    for count in counts:
        if count.fits == last.fits and last.makespan_us >= (1.0 - WORTH) * count.makespan_us:
            return count.devices
    return last.devices


def advice(counts: Sequence[DeviceCount]) -> str:
    """Say in a sentence how many devices are worth using; see `worth_using`."""
    worth, last = worth_using(counts), counts[-1].devices
    if last == 1:
        return "There is one device to use."
    if worth == last:
        longer = f"the step takes at least {100.0 * WORTH:g} % longer, or the model doesn't fit"
        return f"All {last} devices are worth using: with fewer, {longer}."
    some = "One device is" if worth == 1 else f"{worth} of the {last} devices are"
    return f"{some} worth using: more save less than {100.0 * WORTH:g} % of the step."
