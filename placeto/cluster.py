"""Clusters: devices, the links between them, and the file format, of which `placeto.topology` has the compact form.

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

from placeto.graph import read_json, write_json
from placeto.topology import ClusterError, Topology, is_number, refuse_unknown, topology_from_document
from placeto.units import format_bytes

FORMAT = "placeto.cluster/1"
TRANSFERS = ("unicast", "broadcast")
LINKS = ("egress", "pair")
_INT64_MAX = 2**63 - 1
_MOST_DEVICES = 4096  # of one record; the matrices have the square of it
_BYTES_PER_US = 1e6  # 1 byte/us = 1e6 bytes/s
_NO_DEVICE = "devices: a cluster needs at least one device"
_MATRICES = {"bandwidth", "latency_us"}
_CLUSTER_FIELDS = {"format", "name", "transfers", "link", "devices", "topology", "link_gap_us"} | _MATRICES
_DEVICE_FIELDS = {"name", "kind", "flops", "memory_bandwidth", "memory", "overhead_us", "count"}


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
        if not (isinstance(self.name, str) and self.name and isinstance(self.kind, str)):
            raise ClusterError(f"device {self.name!r}: name and kind must be strings, the name not empty")
        for key, least in (("flops", "> 0"), ("memory_bandwidth", "> 0"), ("memory", "> 0"), ("overhead_us", ">= 0")):
            value = getattr(self, key)
            if not is_number(value, least):
                raise ClusterError(f"device {self.name!r}: {key} must be a finite number {least}, not {value!r}")
        if self.memory != int(self.memory) or self.memory > _INT64_MAX:
            raise ClusterError(f"device {self.name!r}: memory must be whole bytes within int64, not {self.memory!r}")
        object.__setattr__(self, "memory", int(self.memory))


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
        names = self.device_names
        if not names:
            raise ClusterError(_NO_DEVICE)
        if len(set(names)) < len(names):
            raise ClusterError(f"devices: duplicate name {next(n for n in names if names.count(n) > 1)!r}")
        if self.transfers not in TRANSFERS:
            raise ClusterError(f"transfers must be one of {', '.join(TRANSFERS)}, not {self.transfers!r}")
        if self.link not in LINKS:
            raise ClusterError(f"link must be one of {', '.join(LINKS)}, not {self.link!r}")
        if not is_number(self.link_gap_us, ">= 0"):
            raise ClusterError(f"link_gap_us must be a finite number >= 0, not {self.link_gap_us!r}")
        for key, diagonal in (("bandwidth", math.inf), ("latency_us", 0.0)):
            matrix = np.array(getattr(self, key), np.float64)
            size = len(names)
            if matrix.shape != (size, size):
                raise ClusterError(f"{key} must be a {size} x {size} matrix, one row per device, not {matrix.shape}")
            np.fill_diagonal(matrix, 1.0)
            bad = np.argwhere(~np.isfinite(matrix) | (matrix < 0) | ((matrix == 0) & (key == "bandwidth")))
            if len(bad):
                src, dst = bad[0]
                least = "> 0" if key == "bandwidth" else ">= 0"
                raise ClusterError(
                    f"{key} from {names[src]!r} to {names[dst]!r} must be finite and {least}, not {matrix[src, dst]}"
                )
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
        """A cluster whose matrices follow from hosts and islands; see `placeto.topology`.

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
    from placeto.cluster_presets import CLUSTERS  # they are made of the classes above

    if str(name_or_path) in CLUSTERS:
        return CLUSTERS[str(name_or_path)]()
    path = Path(name_or_path)
    if not path.name.endswith((".json", ".json.gz")):
        raise ClusterError(f"unknown cluster {str(path)!r}: presets are {', '.join(CLUSTERS)}, or name a .json file")
    try:
        return _from_document(read_json(path, ClusterError), default_name=path.name.split(".")[0])
    except ClusterError as error:
        message = str(error)
        raise ClusterError(message if message.startswith(str(path)) else f"{path}: {message}") from None


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
    refuse_unknown(document, _CLUSTER_FIELDS, "")
    records = document.get("devices")
    if not isinstance(records, list) or not all(isinstance(record, dict) for record in records):
        raise ClusterError("devices must be a list of objects")
    if not records:
        raise ClusterError(_NO_DEVICE)
    devices = tuple(device for position, record in enumerate(records) for device in _devices(record, position))
    bandwidth, latency_us = _links(document, len(devices))
    return Cluster(
        name=str(document.get("name", default_name)),
        devices=devices,
        bandwidth=bandwidth / _BYTES_PER_US,
        latency_us=latency_us,
        transfers=document.get("transfers", "unicast"),
        link=document.get("link", "egress"),
        link_gap_us=document.get("link_gap_us", 0.0),
    )


def _devices(record: dict[str, Any], position: int) -> list[Device]:
    """The device that a record describes, or `count` alike, named "name:0", "name:1"..."""
    where = f"device {record.get('name', position)!r}: "
    refuse_unknown(record, _DEVICE_FIELDS, where)
    missing = _DEVICE_FIELDS - {"kind", "overhead_us", "count"} - set(record)
    if missing:
        raise ClusterError(f"{where}{min(missing)} is missing")
    device = Device(**{"kind": "gpu", **{key: value for key, value in record.items() if key != "count"}})
    if "count" not in record:
        return [device]
    count = record["count"]
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= _MOST_DEVICES:
        raise ClusterError(f"{where}count must be an integer from 1 to {_MOST_DEVICES}, not {count!r}")
    return [replace(device, name=f"{device.name}:{i}") for i in range(count)]


def _links(document: dict[str, Any], size: int) -> tuple[np.ndarray, np.ndarray]:
    """Bandwidth in bytes/s and latency of a file, each (D, D): its matrices, or those of its topology."""
    if "topology" in document:
        both = _MATRICES & set(document)
        if both:
            raise ClusterError(f"topology stands in place of {min(both)}: leave one of the two out")
        return topology_from_document(document["topology"]).matrices(size)
    if "bandwidth" not in document:
        raise ClusterError("bandwidth is missing (or topology in its place)")
    latency_us = _matrix(document.get("latency_us", 0.0), "latency_us", size)
    return _matrix(document["bandwidth"], "bandwidth", size), latency_us


def _matrix(value: Any, key: str, size: int) -> np.ndarray:
    """(D, D) float64 from nested lists, or from one number for all pairs; what stands on the diagonal is ignored."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return np.full((size, size), _float(value))
    if not isinstance(value, list) or any(not isinstance(row, list) or len(row) != size for row in value):
        raise ClusterError(f"{key} must be a {size} x {size} matrix, one row per device, or one number")
    if len(value) != size:
        raise ClusterError(f"{key} must be a {size} x {size} matrix, one row per device: it has {len(value)} rows")
    matrix = np.zeros((size, size))
    for src, row in enumerate(value):
        for dst, item in enumerate(row):
            if src != dst and (isinstance(item, bool) or not isinstance(item, int | float)):
                raise ClusterError(f"{key}[{src}][{dst}] must be a number, not {item!r}")
            matrix[src, dst] = 0.0 if src == dst else _float(item)
    return matrix


def _float(number: float) -> float:
    """The number as a float; an integer beyond all floats, which JSON allows, is infinite."""
    try:
        return float(number)
    except OverflowError:
        return math.inf
