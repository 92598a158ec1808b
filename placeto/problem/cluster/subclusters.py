"""Parts of a cluster on which a graph may run faster than on all of it: a host, the devices of one kind, half of them.

Legend: D devices.
"""

from __future__ import annotations

import numpy as np
from scipy.sparse.csgraph import connected_components

from placeto.problem.cluster.cluster import Cluster

_STEP = 1.5  # links that are faster than all slower ones by this factor make a level of their own


def subclusters(cluster: Cluster) -> list[tuple[int, ...]]:
    """Return sets of 2 to D-1 devices with faster links to each other than to the rest, and sets of one kind.

    The numbers of the devices in a set are sorted. If fast links divide the devices into several parts, the sets are
    the part with the most FLOP/s, the first two parts together, the first four, and so on. Sets with the fastest links
    come first, kinds come last.

    >>> from placeto import load_cluster
    >>> subclusters(load_cluster("2x4xv100")), subclusters(load_cluster("4xv100"))
    ([(0, 1, 2, 3)], [])
    """
    subsets: dict[tuple[int, ...], None] = {}
    peak = np.array([device.peak() for device in cluster.devices])
    both_ways = np.minimum(cluster.bandwidth, cluster.bandwidth.T)
    for least in _levels(both_ways):
        count, part = connected_components(both_ways >= least, directed=False)
        members = [np.flatnonzero(part == number) for number in range(count)]
        members = [own for own in members if len(own) > 1]
        members.sort(key=lambda own: (-peak[own].sum(), own[0]))
        together = 1
        while together <= len(members):
            subsets[tuple(sorted(np.concatenate(members[:together]).tolist()))] = None
            together *= 2
    kinds = [(device.kind, device.peak()) for device in cluster.devices]
    for kind in sorted(set(kinds), key=lambda kind: -kind[1]):
        subsets[tuple(number for number, other in enumerate(kinds) if other == kind)] = None
    return [devices for devices in subsets if 2 <= len(devices) < cluster.num_devices]


def halves(cluster: Cluster) -> list[tuple[int, ...]]:
    """Return the first half of a cluster's devices, the first quarter, and so on down to two, and those of its parts.

    The parts are those of `subclusters`, which aren't in the result themselves.

    >>> from placeto import load_cluster
    >>> halves(load_cluster("8xh100"))
    [(0, 1, 2, 3), (0, 1)]
    """
    known = subclusters(cluster)
    subsets: dict[tuple[int, ...], None] = {}
    for devices in [tuple(range(cluster.num_devices)), *known]:
        size = (len(devices) + 1) // 2
        while 2 <= size < len(devices):
            subsets[devices[:size]] = None
            size = (size + 1) // 2 if size > 2 else 1
    return [devices for devices in subsets if devices not in known]


def _levels(bandwidth: np.ndarray) -> list[float]:
    """Return the least bandwidth of the links of each level of speed except the slowest, the fastest level first."""
    speeds = np.unique(bandwidth[np.isfinite(bandwidth)])
    return speeds[1:][speeds[1:] >= _STEP * speeds[:-1]][::-1].tolist()
