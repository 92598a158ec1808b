"""A cluster with more devices of the kind that it has.

Legend: D devices.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from placeto.problem.cluster.cluster import Cluster
from placeto.problem.cluster.presets import PCIE3, PCIE_LATENCY_US


def with_devices(cluster: Cluster, total: int) -> Cluster:
    """Return a cluster with more devices like the last one that is no CPU, until `total` devices are no CPUs.

    They are on the host of that device, and have its links to the others. To each other and to this device, they have
    the link that it has to its nearest neighbour; if it has none, PCIe 3 is assumed.

    >>> from placeto import load_cluster
    >>> with_devices(load_cluster("cpu+1xh100"), 3).device_names
    ('cpu:0', 'gpu:0', 'gpu:0+1', 'gpu:0+2')
    """
    like = max(cluster.computing, default=cluster.num_devices - 1)
    more = total - len(cluster.computing) if cluster.computing else total - cluster.num_devices
    names = tuple(f"{cluster.device_names[like]}+{number}" for number in range(1, more + 1))
    origin = np.array([*range(cluster.num_devices), *[like] * more])
    others = [device for device in range(cluster.num_devices) if device != like]
    nearest = max(others, key=lambda device: cluster.bandwidth[like, device], default=None)
    near = (PCIE3 / 1e6, PCIE_LATENCY_US)  # bytes/us, microseconds
    if nearest is not None:
        near = cluster.bandwidth[like, nearest], cluster.latency_us[like, nearest]
    matrices = []
    for matrix, link in zip((cluster.bandwidth, cluster.latency_us), near, strict=True):
        larger = matrix[np.ix_(origin, origin)].copy()
        larger[np.ix_(origin == like, origin == like)] = link
        matrices.append(larger)

    def with_new(side: tuple[str, ...]) -> tuple[str, ...]:
        return (*side, *names) if cluster.device_names[like] in side else side

    return replace(
        cluster,
        name=f"{cluster.name} with {total} devices",
        devices=(*cluster.devices, *(replace(cluster.devices[like], name=name) for name in names)),
        bandwidth=matrices[0],
        latency_us=matrices[1],
        shared_links=tuple(
            replace(link, senders=with_new(link.senders), receivers=with_new(link.receivers))
            for link in cluster.shared_links
        ),
        price_per_hour=None,
        hosts=tuple(cluster.host[origin].tolist()),
    )
