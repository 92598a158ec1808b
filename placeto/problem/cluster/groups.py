"""Tensor-parallel groups: a group of boards of one host is one device of a cluster.

Each rank of a group sends to the rank of the same number in another group. So a group's link to another one is the
slowest of the links between these pairs, and its ranks share the network cards that they have in common.

Legend: D boards, t ranks of a group, G groups.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from placeto.errors import ClusterError
from placeto.problem.cluster.cluster import Cluster, Device, SharedLink


class Ring(NamedTuple):
    """The slowest link between two ranks of a group."""

    bandwidth: float  # bytes/us
    latency_us: float


def grouped(cluster: Cluster, width: int) -> Cluster:
    """Return a cluster whose devices are groups of `width` neighbouring boards; CPUs are left out.

    A group has the FLOP/s and the memory of one board: the captured step is that of one rank.

    Raises:
        ClusterError: `width` doesn't divide the boards of a host, or the boards of a group are of different kinds.

    >>> from placeto import load_cluster
    >>> grouped(load_cluster("8xh100"), 4).device_names
    ('gpu:0..gpu:3', 'gpu:4..gpu:7')
    """
    if width == 1:
        return cluster
    ranks = ranks_of(cluster, width)
    devices = [cluster.devices[first] for first in ranks[:, 0]]
    names = [f"{cluster.device_names[row[0]]}..{cluster.device_names[row[-1]]}" for row in ranks.tolist()]
    pairs = ranks[:, None], ranks[None]  # of each two groups: the ranks that send, and those that receive
    bandwidth, latency_us = cluster.bandwidth[pairs].min(axis=-1), cluster.latency_us[pairs].max(axis=-1)
    np.fill_diagonal(bandwidth, 1.0)
    hosts = np.unique(cluster.host[ranks[:, 0]], return_inverse=True)[1]
    shared = (_shared(link, np.array(cluster.device_names)[ranks], names) for link in cluster.shared_links)
    return replace(
        cluster,
        name=f"{cluster.name} in groups of {width}",
        devices=tuple(replace(device, name=name) for device, name in zip(devices, names, strict=True)),
        bandwidth=bandwidth,
        latency_us=latency_us,
        shared_links=tuple(link for link in shared if link is not None),
        hosts=tuple(hosts.tolist()),
    )


def rings(cluster: Cluster, width: int) -> Mapping[str, Ring]:
    """Return the slowest link within a group, by the kind of its boards.

    Raises:
        ClusterError: as for `grouped`.
    """
    found = dict[str, Ring]()
    between = ~np.eye(width, dtype=bool)
    for row in ranks_of(cluster, width):
        kind, pairs = cluster.devices[row[0]].kind, np.ix_(row, row)
        bandwidth, latency_us = cluster.bandwidth[pairs][between].min(), cluster.latency_us[pairs][between].max()
        slowest = found.get(kind, Ring(np.inf, 0.0))
        found[kind] = Ring(min(slowest.bandwidth, float(bandwidth)), max(slowest.latency_us, float(latency_us)))
    return found


def ranks_of(cluster: Cluster, width: int) -> np.ndarray:
    """(G, t) numbers of the boards of each group.

    Raises:
        ClusterError: as for `grouped`.
    """
    boards = np.array(cluster.computing, np.int64)
    for host in range(cluster.num_hosts):
        count = int((cluster.host[boards] == host).sum())
        if count % width:
            where = f"a host of {cluster.name} has {count} boards"
            raise ClusterError(
                f"{where}, which can't be divided into groups of {width}: choose a width that divides it"
            )
    if not len(boards):
        raise ClusterError(f"{cluster.name} has CPUs alone, and groups of {width} need boards")
    ranks = boards[np.argsort(cluster.host[boards], kind="stable")].reshape(-1, width)
    for row in ranks.tolist():
        if len({_like(cluster.devices[board]) for board in row}) > 1:
            kinds = " and ".join(dict.fromkeys(cluster.devices[board].kind for board in row))
            raise ClusterError(f"groups of {width} on {cluster.name} would be of different boards, {kinds}")
    return ranks


def _like(device: Device) -> Device:
    return replace(device, name="any")


def _shared(link: SharedLink, names: np.ndarray, groups: list[str]) -> SharedLink | None:
    """Return a shared link of groups, whose boards have these names (G, t); None if no transfer crosses it.

    The ranks of a group send at the same time, so that each gets its share of the link.
    """
    senders, receivers = (np.isin(names, side).astype(np.int64) for side in (link.senders, link.receivers))
    crossing = senders @ receivers.T  # (G, G) how many ranks of a group send over it to another group
    np.fill_diagonal(crossing, 0)
    if not crossing.any():
        return None
    sides = (tuple(np.array(groups)[crossing.any(axis=axis)].tolist()) for axis in (1, 0))
    return SharedLink(link.name, link.bandwidth / int(crossing.max()), *sides)
