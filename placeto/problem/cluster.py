"""Clusters: devices, the links between them, and the file format; `placeto.problem.topology` has its compact form.

Legend: D devices.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from placeto.problem.fields import (
    Field,
    anything,
    choice,
    integer,
    number,
    quote,
    read_fields,
    read_json,
    size,
    text,
    within,
    write_json,
)
from placeto.problem.topology import MOST_DEVICES, ClusterError, Topology, topology_from_document
from placeto.problem.units import format_bytes

FORMAT = "placeto.cluster/1"
TRANSFERS = ("unicast", "broadcast")
LINKS = ("egress", "pair")
_BYTES_PER_US = 1e6  # 1 byte/us = 1e6 bytes/s
_MATRICES = ("bandwidth", "latency_us")


def _name(value: Any, key: str, error: type[ValueError]) -> str:
    if text(value, key, error) == "":
        raise error(f"{key} must not be empty")
    return value


def _memory(value: Any, key: str, error: type[ValueError]) -> int:
    if size(value, key, error) == 0:
        raise error(f"{key} must be above 0")
    return int(value)


def _records(value: Any, key: str, error: type[ValueError]) -> list[Any]:
    if not isinstance(value, list) or not value or not all(isinstance(item, dict) for item in value):
        raise error(f"{key} must be a list of objects, at least one, not {quote(value)}")
    return value


_DEVICE = {
    "name": Field(_name),
    "kind": Field(text, "gpu"),
    "flops": Field(number(above=0.0)),
    "memory_bandwidth": Field(number(above=0.0)),
    "memory": Field(_memory),
    "overhead_us": Field(number(), 0.0),
}
_RECORD = _DEVICE | {"count": Field(integer(1, MOST_DEVICES), None)}
_LINKS = {
    "transfers": Field(choice(*TRANSFERS), "unicast"),
    "link": Field(choice(*LINKS), "egress"),
    "link_gap_us": Field(number(), 0.0),
}
_CLUSTER = _LINKS | {
    "format": Field(text),
    "name": Field(text, None),
    "devices": Field(_records),
    "topology": Field(anything, None),
    "bandwidth": Field(anything, None),
    "latency_us": Field(anything, 0.0),
}
_LEAST = 1e6
_UNITS = {  # what numbers of a file are in, and what they look like
    "flops": ("FLOP/s", "15.7e12"),
    "memory_bandwidth": ("bytes/s", "900e9"),
    "memory": ("bytes", "16e9"),
    "bandwidth": ("bytes/s", "12e9"),
}


@dataclass(frozen=True)
class Device:
    """One device: how fast it computes and reads memory, and how much it holds.

    Raises:
        ClusterError: a number is not finite, not positive (overhead: negative), or memory is not whole bytes.
    """

    name: str
    kind: str  # devices of one kind share measured op times
    flops: float  # peak FLOP/s
    memory_bandwidth: float  # bytes/s
    memory: int  # bytes
    overhead_us: float = 0.0  # the device stays busy for this long after each op of non-zero cost

    def __post_init__(self) -> None:
        with within(ClusterError, "device", self.name):
            read_fields(vars(self), _DEVICE, ClusterError)
        object.__setattr__(self, "memory", int(self.memory))
        for key in ("flops", "memory_bandwidth", "overhead_us"):
            if isinstance(getattr(self, key), np.generic):  # which the hash and files can't write
                object.__setattr__(self, key, getattr(self, key).item())


@dataclass(frozen=True, eq=False)
class Cluster:
    """Devices and the links between them.

    A transfer from device s to device d takes ``latency_us[s, d] + bytes / bandwidth[s, d]``. With "egress"
    links each device sends through one first-in-first-out link, with "pair" links through one per destination.
    With "unicast" transfers a tensor is sent once per destination device, with "broadcast" once for all, in the
    time of the slowest destination; over pair links the two are the same, as each destination has its own link.
    Links contend for nothing else: neither for the receiver, nor for a network card or a PCIe switch that the devices
    of one host share. The diagonals mean nothing: they are set to infinite bandwidth and no latency.

    Raises:
        ClusterError: no device, duplicate names, a matrix that is not (D, D), a number out of range, an unknown mode.
    """

    name: str
    devices: tuple[Device, ...]  # (D,)
    bandwidth: np.ndarray  # (D, D) float64, bytes/us, from row to column
    latency_us: np.ndarray  # (D, D) float64
    transfers: str = "unicast"  # "unicast" | "broadcast"
    link: str = "egress"  # "egress" | "pair"
    link_gap_us: float = 0.0  # a link stays busy for this long after each delivery

    def __post_init__(self) -> None:
        object.__setattr__(self, "devices", tuple(self.devices))
        if not all(isinstance(device, Device) for device in self.devices):
            raise ClusterError(f"devices must all be of the class Device, not {quote(self.devices)}")
        text(self.name, "name", ClusterError)
        names = self.device_names
        if not 1 <= len(names) <= MOST_DEVICES:
            raise ClusterError(f"devices: a cluster needs from one device to {MOST_DEVICES}, not {len(names)}")
        if len(set(names)) < len(names):
            raise ClusterError(f"devices: duplicate name {quote(next(n for n in names if names.count(n) > 1))}")
        links = read_fields({key: getattr(self, key) for key in _LINKS}, _LINKS, ClusterError)
        if isinstance(self.link_gap_us, np.generic):
            object.__setattr__(self, "link_gap_us", links["link_gap_us"])
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
            matrix.setflags(write=False)
            object.__setattr__(self, key, matrix)

    @classmethod
    def from_topology(
        cls,
        name: str,
        devices: Sequence[Device],
        topology: Topology,
        transfers: str = "unicast",
        link: str = "egress",
        link_gap_us: float = 0.0,
    ) -> Cluster:
        """A cluster whose matrices follow from hosts and islands; see `placeto.problem.topology`.

        Raises:
            ClusterError: the topology holds another number of devices, or any of the above.
        """
        bandwidth, latency_us = topology.matrices(len(devices))
        return cls(name, tuple(devices), bandwidth / _BYTES_PER_US, latency_us, transfers, link, link_gap_us)

    def __repr__(self) -> str:
        kinds = ", ".join(f"{n} {kind}" for kind, n in Counter(device.kind for device in self.devices).items())
        return f"Cluster({self.name!r}, {kinds}, memory {format_bytes(int(self.memory.sum()))})"

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles by the fields alone, so that the arrays come back read-only."""
        return Cluster, tuple(getattr(self, field.name) for field in fields(self))

    @property
    def num_devices(self) -> int:
        """D, the number of devices."""
        return len(self.devices)

    @property
    def device_names(self) -> tuple[str, ...]:
        """(D,) names."""
        return tuple(device.name for device in self.devices)

    @cached_property
    def hash(self) -> str:
        """SHA-256 of the content (name of the cluster excluded), 64 hex digits."""
        described = [[getattr(device, key) for key in vars(device)] for device in self.devices]
        links = [self.bandwidth.tolist(), self.latency_us.tolist(), self.transfers, self.link]
        return hashlib.sha256(json.dumps([described, links, self.link_gap_us]).encode()).hexdigest()

    @cached_property
    def memory(self) -> np.ndarray:
        """(D,) int64, bytes."""
        return _frozen(np.array([device.memory for device in self.devices], np.int64))

    @cached_property
    def overhead_us(self) -> np.ndarray:
        """(D,) float64, microseconds a device stays busy after each op of non-zero cost."""
        return _frozen(np.array([device.overhead_us for device in self.devices], np.float64))

    @cached_property
    def device_rank(self) -> np.ndarray:
        """(D,) int64, rank of each device name in string order: the simulator's tie-break."""
        rank = np.empty(self.num_devices, np.int64)
        rank[sorted(range(self.num_devices), key=self.device_names.__getitem__)] = np.arange(self.num_devices)
        return _frozen(rank)


def load_cluster(name_or_path: str | Path) -> Cluster:
    """A preset by name, or a cluster file (``.json``, ``.json.gz``; format "placeto.cluster/1").

    Raises:
        ClusterError: no preset of that name, or not such a file; the message names file and field.
        OSError: the file can't be read.
    """
    from placeto.problem.presets import CLUSTERS  # they are made of the classes above

    if str(name_or_path) in CLUSTERS:
        return CLUSTERS[str(name_or_path)]()
    path = Path(name_or_path)
    if not path.name.endswith((".json", ".json.gz")):
        raise ClusterError(
            f"unknown cluster {quote(str(path))}: presets are {', '.join(CLUSTERS)}, or name a .json file"
        )
    document = read_json(path, ClusterError)
    with within(ClusterError, path):
        return _from_document(document, default_name=path.name.split(".")[0])


def save_cluster(cluster: Cluster, path: str | Path) -> None:
    """Write a cluster as ``.json`` or ``.json.gz``; loading it gives the same numbers to the bit."""
    bandwidth = np.vectorize(_bytes_per_second)(cluster.bandwidth)
    np.fill_diagonal(bandwidth, 0.0)
    document = {
        "format": FORMAT,
        "name": cluster.name,
        "transfers": cluster.transfers,
        "link": cluster.link,
        "devices": [vars(device) for device in cluster.devices],
        "bandwidth": bandwidth.tolist(),
        "latency_us": cluster.latency_us.tolist(),
        "link_gap_us": cluster.link_gap_us,
    }
    write_json(document, path)


def _frozen(array: np.ndarray) -> np.ndarray:
    array.setflags(write=False)
    return array


def _bytes_per_second(bytes_per_us: float) -> float:
    """The file value that loads as `bytes_per_us` exactly: the product, or a neighbour of it."""
    value = bytes_per_us * _BYTES_PER_US
    for candidate in (value, math.nextafter(value, 0), math.nextafter(value, math.inf)):
        if candidate / _BYTES_PER_US == bytes_per_us:
            return candidate
    return value


def _from_document(document: Any, default_name: str) -> Cluster:
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise ClusterError(f'not a cluster file: "format" must be "{FORMAT}"')
    values = read_fields(document, _CLUSTER, ClusterError)
    devices = _devices(values["devices"])
    bandwidth, latency_us = _links(document, len(devices))
    cluster = Cluster(
        name=default_name if values["name"] is None else values["name"],
        devices=devices,
        bandwidth=bandwidth / _BYTES_PER_US,
        latency_us=latency_us,
        **{key: values[key] for key in _LINKS},
    )
    for device in devices:
        with within(ClusterError, "device", device.name):
            for key in ("flops", "memory_bandwidth", "memory"):
                _refuse_implausible(key, getattr(device, key))
    _refuse_implausible("bandwidth", cluster.bandwidth.min() * _BYTES_PER_US)
    return cluster


def _refuse_implausible(key: str, value: float) -> None:
    """Raise an error for a number that no machine has; most often its exponent was forgotten."""
    if value < _LEAST:
        unit, example = _UNITS[key]
        raise ClusterError(f"{key} = {value:g} {unit} is implausible, at least {_LEAST:g} is: write it as in {example}")


def _devices(records: list[dict[str, Any]]) -> tuple[Device, ...]:
    """The devices of all records: one each, or `count` alike, named "name:0", "name:1"..."""
    devices: list[Device] = []
    for position, record in enumerate(records):
        with within(ClusterError, "device", record.get("name", position)):
            values = read_fields(record, _RECORD, ClusterError)
            count = values.pop("count")
            if len(devices) + (count or 1) > MOST_DEVICES:
                raise ClusterError(f"makes more than {MOST_DEVICES} devices in all, the most that a cluster has")
        device = Device(**{key: record.get(key, value) for key, value in values.items()})
        devices += [device] if count is None else [replace(device, name=f"{device.name}:{i}") for i in range(count)]
    return tuple(devices)


def _links(document: dict[str, Any], size: int) -> tuple[np.ndarray, np.ndarray]:
    """Bandwidth in bytes/s and latency of a file, each (D, D): its matrices, or those of its topology."""
    if "topology" in document:
        for key in _MATRICES:
            if key in document:
                raise ClusterError(f"topology stands in place of {key}: leave one of the two out")
        return topology_from_document(document["topology"]).matrices(size)
    if "bandwidth" not in document:
        raise ClusterError("bandwidth is missing (or topology in its place)")
    latency_us = _matrix(document.get("latency_us", 0.0), "latency_us", size)
    return _matrix(document["bandwidth"], "bandwidth", size), latency_us


def _matrix(value: Any, key: str, size: int) -> np.ndarray:
    """(D, D) float64 from nested lists, or from one number for all pairs; what stands on the diagonal is ignored."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return np.full((size, size), float(value))
    if not isinstance(value, list) or any(not isinstance(row, list) or len(row) != size for row in value):
        raise ClusterError(f"{key} must be a {size} x {size} matrix, one row per device, or one number")
    if len(value) != size:
        raise ClusterError(f"{key} must be a {size} x {size} matrix, one row per device: it has {len(value)} rows")
    matrix = np.zeros((size, size))
    for src, row in enumerate(value):
        for dst, item in enumerate(row):
            if src != dst and (isinstance(item, bool) or not isinstance(item, int | float)):
                raise ClusterError(f"{key}[{src}][{dst}] must be a number, not {quote(item)}")
            matrix[src, dst] = 0.0 if src == dst else float(item)
    return matrix
