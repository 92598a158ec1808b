"""A problem on some of its devices alone; `placeto.problem.cluster.subclusters` says which ones may be faster.

Legend: D devices.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import numpy as np

from placeto.problem.problem import PlacementProblem


def simulates_alike(problem: PlacementProblem, devices: tuple[int, ...]) -> bool:
    """Whether each placement on some devices has the same makespan on these alone as on the whole cluster.

    If the devices have other numbers within their hosts, lowering may choose other devices for sums of gradients and
    for relays on other hosts: see `placeto.simulator.lowering`.
    """
    before = problem.cluster.host
    host = before[np.array(devices)]
    on_each = np.bincount(host)[np.unique(host)]
    if len(problem.arrays.lowering) == 0 or len(on_each) == 1 or on_each.max() == 1:
        return True
    return all(
        np.sum(before[:device] == before[device]) == np.sum(host[:n] == host[n]) for n, device in enumerate(devices)
    )


@lru_cache(maxsize=16)
def on_devices(problem: PlacementProblem, devices: tuple[int, ...]) -> PlacementProblem:
    """Return the problem on some of its devices alone, with the priorities that it has on all devices; cached.

    A placement on these devices has the same makespan here as on the whole cluster if `simulates_alike` says so.
    """
    cluster, chosen = problem.cluster, np.array(devices)
    names = {cluster.device_names[device] for device in devices}
    shared = []
    for link in cluster.shared_links:
        sides = tuple(tuple(name for name in side if name in names) for side in (link.senders, link.receivers))
        if any(sender != receiver for sender in sides[0] for receiver in sides[1]):
            shared.append(type(link)(link.name, link.bandwidth, *sides))
    part = replace(
        cluster,
        name=f"{cluster.name}[{','.join(map(str, devices))}]",
        devices=tuple(cluster.devices[device] for device in devices),
        bandwidth=cluster.bandwidth[np.ix_(chosen, chosen)],
        latency_us=cluster.latency_us[np.ix_(chosen, chosen)],
        shared_links=tuple(shared),
        price_per_hour=None,
        hosts=tuple(np.unique(cluster.host[chosen], return_inverse=True)[1].tolist()),
    )
    made = replace(problem, cluster=part)
    vars(made)["priority"] = problem.priority  # the mean times over fewer devices could give another order
    return made
