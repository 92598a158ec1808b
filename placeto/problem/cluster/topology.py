"""Topologies: hosts with islands of devices, in place of a bandwidth and a latency for every pair.

In a cluster file ("placeto.cluster/1") a ``topology`` stands in place of ``bandwidth`` and ``latency_us``. Two hosts of
four GPUs, all four of a host joined by NVLink, with 25 Gb/s between the hosts:

    "topology": {"hosts": [[4], [4]],
                 "island": {"bandwidth": 32e9, "latency_us": 10},
                 "network": {"bandwidth": 2.9e9, "latency_us": 50}}

`hosts` has one list per host: the sizes of its islands, filled with the devices in their order. ``[[2, 2]]`` is one
host with two pairs, ``[[1, 1, 1, 1]]`` one with four devices on PCIe alone. `island`, `host` and `network` are the
links within an island, between islands of one host, and between hosts; links that no two devices need may be left out.

Each pair of devices has the link of the closest level that joins it. Transfers of several pairs may also cross shared
links, which are optional, and separate for each direction. `switch` is an island's way out, such as a PCIe switch.
`bridge` leads from an island to the others of its host. `card` is a host's network card; with several `cards`, each
device of the host belongs to one of them, in turn:

    "card": {"bandwidth": 2.9e9}, "cards": 1

The latency of a shared link is added to that of the pair.

Legend: D devices.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from pydantic import Field, with_config

from placeto.errors import ClusterError
from placeto.problem.checks import CLOSED, Count, Number, Positive, check_fields

LEVELS = {"island": "two devices share an island", "host": "a host has two islands", "network": "there are two hosts"}
MOST_DEVICES = 4096
"""Most devices of a cluster; its matrices have the square of this number of entries."""


@with_config(CLOSED)
@dataclass(frozen=True)
class Link:
    """The link of one level of the topology. A transfer over it takes ``latency_us + bytes / bandwidth``.

    Raises:
        ClusterError: a number is not finite, bandwidth is not positive, or latency is negative.
    """

    bandwidth: Positive  # bytes/s, in one direction
    latency_us: Number = 0.0  # microseconds, in one direction

    def __post_init__(self) -> None:
        check_fields(self, ClusterError, "link")


Islands = Annotated[tuple[Count, ...], Field(min_length=1)]


@dataclass(frozen=True)
class Topology:
    """Hosts, each with islands of devices, and the links of the three levels.

    Raises:
        ClusterError: no host, a host without islands, a size that is not a positive integer, or a missing link.
    """

    hosts: Annotated[tuple[Islands, ...], Field(min_length=1)]
    """For each host the sizes of its islands; the devices fill them in their order."""
    island: Link | None = None  # between two devices of one island, such as NVLink
    host: Link | None = None  # between two islands of one host, such as PCIe
    network: Link | None = None  # between two hosts
    switch: Link | None = None  # shared link: the way out of an island, and the way in
    bridge: Link | None = None  # shared link: the way from an island to the other islands of its host
    card: Link | None = None  # shared link: a network card of a host
    cards: Count = 1  # number of network cards of each host; the devices of a host belong to its cards in turn

    def __post_init__(self) -> None:
        check_fields(self, ClusterError, "topology")
        if self.num_devices > MOST_DEVICES:
            raise ClusterError(f"topology: hosts must have room for at most {MOST_DEVICES} devices")
        needed = (
            any(max(host) > 1 for host in self.hosts),
            any(len(host) > 1 for host in self.hosts),
            len(self.hosts) > 1,
        )
        for (level, why), joins in zip(LEVELS.items(), needed, strict=True):
            if joins and getattr(self, level) is None:
                raise ClusterError(f"topology: {level} is missing, the link where {why}")

    @property
    def num_devices(self) -> int:
        """D, the number of devices that the topology places."""
        return sum(map(sum, self.hosts))

    @property
    def host_of_devices(self) -> tuple[int, ...]:
        """(D,) number of the host that each device is in."""
        return tuple(self._where()[0].tolist())

    def matrices(self, num_devices: int) -> tuple[np.ndarray, np.ndarray]:
        """Bandwidth in bytes/s and latency in microseconds between D devices, each (D, D) float64.

        >>> Topology(((2,), (1,)), island=Link(48e9, 10.0), network=Link(3e9, 30.0)).matrices(3)[1].tolist()
        [[0.0, 10.0, 30.0], [10.0, 0.0, 30.0], [30.0, 30.0, 0.0]]

        Raises:
            ClusterError: the islands have more or fewer devices.
        """
        if self.num_devices != num_devices:
            raise ClusterError(f"topology: hosts has room for {self.num_devices} devices, but there are {num_devices}")
        host, island = self._where()
        level = np.where(host[:, None] != host, 2, np.where(island[:, None] != island, 1, 0))
        links = [self.island, self.host, self.network]  # None joins no two devices: see __post_init__
        bandwidth = np.array([link.bandwidth if link else 0.0 for link in links], np.float64)[level]
        latency_us = np.array([link.latency_us if link else 0.0 for link in links], np.float64)[level]
        np.fill_diagonal(bandwidth, 0.0)
        np.fill_diagonal(latency_us, 0.0)
        return bandwidth, latency_us

    def shared(self) -> list[tuple[str, Link, np.ndarray, np.ndarray]]:
        """Return the shared links: name, link, and numbers of the devices that send and that receive over it."""
        host, island = self._where()
        links: list[tuple[str, Link, np.ndarray, np.ndarray]] = []

        def both_ways(name: str, link: Link | None, inside: np.ndarray, outside: np.ndarray) -> None:
            if link is not None and len(inside) and len(outside):
                links.extend([(f"{name}, out", link, inside, outside), (f"{name}, in", link, outside, inside)])

        for place in range(len(self.hosts)):
            here, others = np.flatnonzero(host == place), np.flatnonzero(host != place)
            for card in range(self.cards):
                both_ways(f"card {card} of host {place}", self.card, here[card :: self.cards], others)
        for place in range(int(island.max()) + 1):
            inside = island == place
            both_ways(f"switch of island {place}", self.switch, np.flatnonzero(inside), np.flatnonzero(~inside))
            rest = np.flatnonzero(~inside & (host == host[inside.argmax()]))
            if self.bridge is not None and len(rest):
                links.append((f"bridge from island {place}", self.bridge, np.flatnonzero(inside), rest))
        return links

    def _where(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the number of each device's host (D,), and of its island (D,)."""
        host = np.repeat(np.arange(len(self.hosts)), [sum(sizes) for sizes in self.hosts])
        islands = [size for sizes in self.hosts for size in sizes]
        return host, np.repeat(np.arange(len(islands)), islands)
