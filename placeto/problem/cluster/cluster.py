"""Clusters: devices and the links between them.

Legend: D devices.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, fields
from functools import cached_property
from typing import Annotated, Any

import numpy as np
from pydantic import AfterValidator, BeforeValidator, Field

from placeto.errors import ClusterError
from placeto.problem import dtypes
from placeto.problem.checks import INT64_MAX, Name, Number, OneOf, Positive, Record, Text, check_fields, whole
from placeto.problem.cluster.topology import MOST_DEVICES, Topology
from placeto.problem.messages import listed, quote
from placeto.problem.units import format_bytes

FORMAT = "placeto.cluster/1"
TRANSFERS = ("unicast", "broadcast")
LINKS = ("egress", "pair", "free")
STATIC_ORDERS = ("priority", "earlier-0.02", "earlier-0.05", "earlier-0.2", "1f1b")
"""Dispatches that follow a static order of all ops: see `placeto.problem.dispatch`."""
DISPATCHES = ("fifo", "list", *STATIC_ORDERS)
Dispatch = Annotated[str, OneOf(DISPATCHES)]
BYTES_PER_US = 1e6  # 1 byte/us = 1e6 bytes/s


def _peaks(flops: float | Mapping[str, float]) -> float | Mapping[str, float]:
    """Refuse peaks without one of float32; put them into the order of `DTYPES`."""
    if not isinstance(flops, Mapping):
        return flops
    if dtypes.DEFAULT not in flops:
        raise ValueError(f"must give the peak of {dtypes.DEFAULT}, which stands in for others")
    return {name: flops[name] for name in dtypes.DTYPES if name in flops}


Peaks = Annotated[Positive | Mapping[Annotated[str, OneOf(dtypes.DTYPES)], Positive], AfterValidator(_peaks)]
Memory = Annotated[int, Field(strict=True, ge=1, le=INT64_MAX), BeforeValidator(whole)]


class LinkFields(Record, total=False):
    """How a cluster sends tensors, and which op a device runs next."""

    transfers: Annotated[str, OneOf(TRANSFERS)]
    """Unicast: a tensor is sent once to each device that needs it. Broadcast: a tensor is sent once to all, in the time
    of the slowest. Default: `"unicast"`"""
    link: Annotated[str, OneOf(LINKS)]
    """Egress: each device sends through one queue. Pair: each device has one queue to each other device. Free:
    transfers never wait. Default: `"egress"`"""
    link_gap_us: Number  # how long a link stays busy after each delivery. Default: 0
    dispatch: Dispatch  # which of its ready ops a device runs next; see below. Default: `"priority"`


class _Fields(LinkFields, total=False):
    name: Text
    price_per_hour: Number | None


@dataclass(frozen=True)
class Device:
    """One device: how fast it computes and accesses memory, and how much memory it has.

    Raises:
        ClusterError: a number is not finite or not above 0 (the overhead and the launch may be 0), the memory is no
            whole number of bytes, or `flops` has no peak of float32; the message names device and field.
    """

    name: Name  # a name that is unique in the cluster
    kind: Text  # devices of one kind have the same measured times
    flops: Peaks  # peak FLOP/s: one number for all dtypes, or one for each dtype
    memory_bandwidth: Positive  # bytes/s
    memory: Memory  # bytes
    overhead_us: Number = 0.0  # how long the device stays busy after each op that takes time
    launch_us: Number = 0.0
    """How long the host takes to launch an op that takes time. It launches the ops of a device one after the other,
    from the beginning of the step, and no op starts before it is launched. 0 if launches never hold up the device"""

    def __post_init__(self) -> None:
        check_fields(self, ClusterError, f"devices[{quote(self.name)}]")

    def __hash__(self) -> int:
        return hash((self.name, self.kind, self.memory, self.memory_bandwidth))

    @property
    def is_cpu(self) -> bool:
        """Whether the device is a CPU: its kind begins with "cpu", in any case."""
        return self.kind.lower().startswith("cpu")

    def peak(self, dtype: str = dtypes.DEFAULT) -> float:
        """Peak FLOP/s in a dtype, or in the next similar dtype that has a peak: see `placeto.problem.dtypes.peak`."""
        return dtypes.peak(self.flops, dtype)


@dataclass(frozen=True)
class SharedLink:
    """A link that transfers from some devices to some others share: one way of a switch, a bridge or a network card.

    A transfer starts when all shared links that it crosses are free, and keeps each of them busy for
    ``bytes / bandwidth``. Waiting transfers are served in the order in which they began to wait. A transfer crosses the
    link if it goes from a device of `senders` to another device, which is one of `receivers`.
    """

    name: Text
    bandwidth: Positive  # bytes/us
    senders: tuple[Text, ...]  # names of devices
    receivers: tuple[Text, ...]  # names of devices


def crossings(cluster: Cluster) -> list[np.ndarray]:
    """Return, for each shared link, which transfers cross it: (D, D) bool, from row to column."""
    names = np.array(cluster.device_names)
    masks = []
    for link in cluster.shared_links:
        mask = np.isin(names, link.senders)[:, None] & np.isin(names, link.receivers)[None]
        np.fill_diagonal(mask, False)
        masks.append(mask)
    return masks


@dataclass(frozen=True, eq=False)
class Cluster:
    """Devices and the links between them.

    A transfer from device s to device d takes ``latency_us[s, d] + bytes / bandwidth[s, d]``. With "egress"
    links, each device sends one tensor after the other. With "pair" links, it sends one at a time to each destination.
    With "free" links, no tensor waits for others: this is the model of the scheduling literature. With "unicast"
    transfers, a tensor is sent once for each destination device. With "broadcast", it is sent once for all of them, in
    the time of the slowest destination; over pair and free links the two are the same. Shared links are network cards
    and switches that the transfers of several devices cross: see `SharedLink`. A bandwidth above that of a shared link
    on the way is lowered to it. The diagonals have no meaning: they are set to infinite bandwidth and no latency.

    Raises:
        ClusterError: no device or more than 4096, duplicate names, a matrix that is not (D, D), a number out of range,
            an unknown mode, shared links of unknown devices or together with free links or with broadcast over egress
            links, or hosts that aren't numbered from 0 on.
    """

    name: str
    devices: tuple[Device, ...]  # (D,)
    bandwidth: np.ndarray  # (D, D) float64, bytes/us, from row to column
    latency_us: np.ndarray  # (D, D) float64, from row to column
    transfers: str = "unicast"  # "unicast" | "broadcast"
    link: str = "egress"  # "egress" | "pair" | "free"
    link_gap_us: float = 0.0  # a link stays busy for this long after each delivery
    dispatch: str = "priority"  # default of problems on this cluster: see `placeto.problem.dispatch`
    shared_links: tuple[SharedLink, ...] = ()
    price_per_hour: float | None = None  # of all devices together, in any currency; no part of the hash
    hosts: tuple[int, ...] = ()  # (D,) number of the host that each device is in, from 0 on; () = all in one

    def __post_init__(self) -> None:
        object.__setattr__(self, "devices", tuple(self.devices))
        if not all(isinstance(device, Device) for device in self.devices):
            raise ClusterError(f"devices must all be of the class Device, not {quote(self.devices)}")
        check_fields(self, ClusterError, kind=_Fields)
        names = self.device_names
        if not 1 <= len(names) <= MOST_DEVICES:
            raise ClusterError(f"devices: a cluster needs from one device to {MOST_DEVICES}, not {len(names)}")
        if len(set(names)) < len(names):
            raise ClusterError(f"devices: duplicate name {quote(next(n for n in names if names.count(n) > 1))}")
        self._check_shared_links()
        self._check_hosts()
        for key, diagonal in (("bandwidth", math.inf), ("latency_us", 0.0)):
            try:
                matrix = np.array(getattr(self, key), np.float64)
            except (TypeError, ValueError):
                raise ClusterError(f"{key} must be a matrix of numbers") from None
            size = len(names)
            if matrix.shape != (size, size):
                raise ClusterError(f"{key} must be a {size} x {size} matrix, one row per device, not {matrix.shape}")
            np.fill_diagonal(matrix, 1.0)
            bad = np.argwhere(~np.isfinite(matrix) | (matrix < 0) | ((matrix == 0) & (key == "bandwidth")))
            if len(bad):
                src, dst = bad[0]
                least = "> 0" if key == "bandwidth" else ">= 0"
                where = f"{key} from {quote(names[src])} to {quote(names[dst])}"
                raise ClusterError(f"{where} must be finite and {least}, not {matrix[src, dst]}")
            np.fill_diagonal(matrix, diagonal)
            if key == "bandwidth":
                for shared, pairs in zip(self.shared_links, crossings(self), strict=True):
                    matrix[pairs] = np.minimum(matrix[pairs], shared.bandwidth)
            matrix.setflags(write=False)
            object.__setattr__(self, key, matrix)

    def _check_hosts(self) -> None:
        hosts = tuple(self.hosts) or (0,) * self.num_devices
        if len(hosts) != self.num_devices or not all(type(host) is int for host in hosts):
            raise ClusterError(
                f"hosts must be {self.num_devices} integers, one for each device, not {quote(self.hosts)}"
            )
        if sorted(set(hosts)) != list(range(max(hosts) + 1)):
            raise ClusterError(f"hosts must be numbered from 0 on without gaps, not {quote(list(hosts))}")
        object.__setattr__(self, "hosts", hosts)

    def _check_shared_links(self) -> None:
        object.__setattr__(self, "shared_links", tuple(self.shared_links))
        for link in self.shared_links:
            what = f"shared_links[{quote(link.name)}]"
            check_fields(link, ClusterError, what)
            for name in (*link.senders, *link.receivers):
                if name not in self.device_names:
                    known = f"there is no device {quote(name)}, but {listed(self.device_names)}"
                    raise ClusterError(f"{what}: {known}")
            if not any(sender != receiver for sender in link.senders for receiver in link.receivers):
                raise ClusterError(f"{what}: no transfer crosses it: it needs senders and receivers")
        if self.shared_links and (self.link == "free" or (self.transfers, self.link) == ("broadcast", "egress")):
            raise ClusterError(f"shared_links need unicast transfers that wait, not {self.transfers} over {self.link}")

    @classmethod
    def from_topology(
        cls,
        name: str,
        devices: Sequence[Device],
        topology: Topology,
        transfers: str = "unicast",
        link: str = "egress",
        link_gap_us: float = 0.0,
        dispatch: str = "priority",
    ) -> Cluster:
        """Make a cluster whose matrices follow from hosts and islands: see `placeto.problem.cluster.topology`.

        Raises:
            ClusterError: the topology is for another number of devices, or as for the class.
        """
        bandwidth, latency_us = topology.matrices(len(devices))
        names, shared = [device.name for device in devices], []
        for link_name, crossed, senders, receivers in topology.shared():
            latency_us[np.ix_(senders, receivers)] += crossed.latency_us
            sides = (tuple(names[device] for device in side) for side in (senders, receivers))
            shared.append(SharedLink(link_name, crossed.bandwidth / BYTES_PER_US, *sides))
        return cls(
            name,
            tuple(devices),
            bandwidth / BYTES_PER_US,
            latency_us,
            transfers,
            link,
            link_gap_us,
            dispatch,
            tuple(shared),
            hosts=topology.host_of_devices,
        )

    def __repr__(self) -> str:
        kinds = ", ".join(f"{n} {kind}" for kind, n in Counter(device.kind for device in self.devices).items())
        return f"Cluster({self.name!r}, {kinds}, memory {format_bytes(int(self.memory.sum()))})"

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the fields alone, so that the arrays come back read-only."""
        return Cluster, tuple(getattr(self, field.name) for field in fields(self))

    @property
    def num_devices(self) -> int:
        """D, the number of devices."""
        return len(self.devices)

    @property
    def computing(self) -> tuple[int, ...]:
        """The numbers of all devices but CPUs."""
        return tuple(number for number, device in enumerate(self.devices) if not device.is_cpu)

    @property
    def has_cpus(self) -> bool:
        """Whether a device is a CPU."""
        return any(device.is_cpu for device in self.devices)

    @property
    def device_names(self) -> tuple[str, ...]:
        """(D,) names."""
        return tuple(device.name for device in self.devices)

    @cached_property
    def hash(self) -> str:
        """SHA-256 of the content (name and price of the cluster excluded), 64 hex digits."""
        described = [[getattr(device, key) for key in vars(device) if key != "launch_us"] for device in self.devices]
        links = [self.bandwidth.tolist(), self.latency_us.tolist(), self.transfers, self.link]
        shared = [astuple(link) for link in self.shared_links]
        content = [described, links, self.link_gap_us, self.dispatch, shared]
        if self.num_hosts > 1:
            content.append(self.hosts)
        if self.launch_us.any():
            content.append(self.launch_us.tolist())
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()

    @property
    def num_hosts(self) -> int:
        """H, the number of hosts."""
        return max(self.hosts) + 1

    @cached_property
    def host(self) -> np.ndarray:
        """(D,) int64, number of the host that each device is in."""
        return frozen(np.array(self.hosts, np.int64))

    @cached_property
    def paths(self) -> tuple[np.ndarray, np.ndarray]:
        """Shared links that each pair's transfers cross: offsets (D*D+1,) of the pairs, row-major, and link numbers."""
        crossed = np.array([pairs.ravel() for pairs in crossings(self)], bool).reshape(-1, self.num_devices**2)
        pairs, links = np.nonzero(crossed.T)
        ptr = np.searchsorted(pairs, np.arange(self.num_devices**2 + 1))
        return frozen(ptr.astype(np.int64)), frozen(links.astype(np.int64))

    @cached_property
    def memory(self) -> np.ndarray:
        """(D,) int64, bytes of each device's memory."""
        return frozen(np.array([device.memory for device in self.devices], np.int64))

    @cached_property
    def overhead_us(self) -> np.ndarray:
        """(D,) float64, microseconds that each device stays busy after each op of non-zero cost."""
        return frozen(np.array([device.overhead_us for device in self.devices], np.float64))

    @cached_property
    def launch_us(self) -> np.ndarray:
        """(D,) float64, microseconds in which the host launches an op of each device."""
        return frozen(np.array([device.launch_us for device in self.devices], np.float64))

    @cached_property
    def device_rank(self) -> np.ndarray:
        """(D,) int64, rank of each device name in string order, by which the simulator breaks ties."""
        return frozen(np.argsort(sorted(range(self.num_devices), key=self.device_names.__getitem__)))


def frozen(array: np.ndarray) -> np.ndarray:
    """Make an array read-only, and return it."""
    array.setflags(write=False)
    return array
