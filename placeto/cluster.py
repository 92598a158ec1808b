"""Clusters: devices, the links between them, presets and the file format.

Legend: D devices.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from placeto.graph import read_json, write_json

FORMAT = "placeto.cluster/1"
TRANSFERS = ("unicast", "broadcast")
LINKS = ("egress", "pair")
_INT64_MAX = 2**63 - 1
_BYTES_PER_US = 1e6  # 1 byte/us = 1e6 bytes/s
_NO_DEVICE = "devices: a cluster needs at least one device"
_CLUSTER_FIELDS = {"format", "name", "transfers", "link", "devices", "bandwidth", "latency_us", "link_gap_us"}
_DEVICE_FIELDS = {"name", "kind", "flops", "memory_bandwidth", "memory", "overhead_us"}


class ClusterError(ValueError):
    """A cluster, or a cluster file, that breaks a rule of the format."""


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
            number = isinstance(value, int | float | np.number) and not isinstance(value, bool)
            if not number or not math.isfinite(value) or value < 0 or (value == 0 and least == "> 0"):
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
    The diagonals mean nothing: they are set to infinite bandwidth and no latency.

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
        if not (math.isfinite(self.link_gap_us) and self.link_gap_us >= 0):
            raise ClusterError(f"link_gap_us must be finite and >= 0, not {self.link_gap_us}")
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
    _refuse_unknown(document, _CLUSTER_FIELDS, "")
    records = document.get("devices")
    if not isinstance(records, list) or not all(isinstance(record, dict) for record in records):
        raise ClusterError("devices must be a list of objects")
    if not records:
        raise ClusterError(_NO_DEVICE)
    devices = []
    for position, record in enumerate(records):
        where = f"device {record.get('name', position)!r}: "
        _refuse_unknown(record, _DEVICE_FIELDS, where)
        missing = _DEVICE_FIELDS - {"kind", "overhead_us"} - set(record)
        if missing:
            raise ClusterError(f"{where}{min(missing)} is missing")
        devices.append(Device(**{"kind": "gpu", **record}))
    if "bandwidth" not in document:
        raise ClusterError("bandwidth is missing")
    gap = document.get("link_gap_us", 0.0)
    if isinstance(gap, bool) or not isinstance(gap, int | float):
        raise ClusterError(f"link_gap_us must be a number, not {gap!r}")
    return Cluster(
        name=str(document.get("name", default_name)),
        devices=tuple(devices),
        bandwidth=_matrix(document["bandwidth"], "bandwidth", len(devices)) / _BYTES_PER_US,
        latency_us=_matrix(document.get("latency_us", 0.0), "latency_us", len(devices)),
        transfers=document.get("transfers", "unicast"),
        link=document.get("link", "egress"),
        link_gap_us=float(gap),
    )


def _refuse_unknown(record: Mapping[str, Any], known: set[str], where: str) -> None:
    unknown = set(record) - known
    if unknown:
        raise ClusterError(f"{where}unknown field {min(unknown)!r}; known: {', '.join(sorted(known))}")


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
                raise ClusterError(f"{key}[{src}][{dst}] must be a number, not {item!r}")
            matrix[src, dst] = 0.0 if src == dst else item
    return matrix


# --- presets -------------------------------------------------------------------------------------------------------
# Peaks, memory bandwidths and memories are the vendors' datasheet values; kernel launches cost about 5 us each.

# One GK210 die of a Tesla K80: half of the board's 8.2 TFLOP/s fp32 (boost), 480 GB/s and 24 GB. The overhead, like
# the link constants in `_k80`, is the published Placeto simulator's for an AWS p2.8xlarge.
K80 = Device("k80", "k80", flops=4.1e12, memory_bandwidth=240e9, memory=12 * 10**9, overhead_us=5.7)
P100 = Device("p100", "p100", flops=9.3e12, memory_bandwidth=732e9, memory=16 * 10**9, overhead_us=5.0)  # PCIe, fp32
V100 = Device("v100", "v100", flops=15.7e12, memory_bandwidth=900e9, memory=16 * 10**9, overhead_us=5.0)  # SXM2, fp32
A100 = Device("a100", "a100", flops=312e12, memory_bandwidth=2039e9, memory=80 * 10**9, overhead_us=4.0)  # SXM, bf16
H100 = Device("h100", "h100", flops=989e12, memory_bandwidth=3350e9, memory=80 * 10**9, overhead_us=4.0)  # SXM, bf16
# A 56-core Sapphire Rapids socket: 64 fp32 FLOPs a cycle and core at 2 GHz, eight channels of DDR5-4800.
CPU = Device("cpu", "cpu", flops=7.2e12, memory_bandwidth=307e9, memory=512 * 10**9, overhead_us=2.0)
# One core of the 2-core Xeon virtual machine that Placeto is developed on, measured with torch 2.13 on one thread:
# 160 GFLOP/s (fp32 matmul, n = 256 and 1024), 14 GB/s (read + write of 64 MB), 2.2 us for an add of 4 numbers.
CPU_CORE = Device("cpu-core", "cpu-core", flops=160e9, memory_bandwidth=14e9, memory=10 * 10**9, overhead_us=2.0)

PCIE3 = 12e9  # bytes/s that a PCIe 3.0 x16 slot moves in practice (15.75e9 on paper)
PCIE5 = 50e9  # 63e9 on paper
SOCKETS = 9e9  # PCIe 3.0 between two sockets, through their QPI link and host memory
NVLINK2 = 24e9  # one NVLink 2.0 link, one direction (25e9 on paper)
LATENCY_US, PCIE_LATENCY_US, SOCKETS_LATENCY_US = 10.0, 15.0, 20.0

# NVLink 2.0 links between the GPUs of a DGX-1 with V100 (hybrid cube mesh: six links a GPU, two quads).
_DGX1_LINKS = np.array(
    [
        [0, 1, 1, 2, 2, 0, 0, 0],
        [1, 0, 2, 1, 0, 2, 0, 0],
        [1, 2, 0, 2, 0, 0, 1, 0],
        [2, 1, 2, 0, 0, 0, 0, 1],
        [2, 0, 0, 0, 0, 1, 1, 2],
        [0, 2, 0, 0, 1, 0, 2, 1],
        [0, 0, 1, 0, 1, 2, 0, 2],
        [0, 0, 0, 1, 2, 1, 2, 0],
    ]
)


def _cluster(
    name: str,
    devices: Sequence[Device],
    bandwidth: float | np.ndarray,
    latency_us: float | np.ndarray,
    transfers: str = "unicast",
    link: str = "egress",
    link_gap_us: float = 0.0,
) -> Cluster:
    """A preset: devices named "gpu:0"... (or "cpu:0"...) in order; bandwidth in bytes/s, one number or (D, D)."""
    named: list[Device] = []
    for device in devices:
        prefix = "cpu" if device.kind.startswith("cpu") else "gpu"
        count = sum(other.name.startswith(prefix) for other in named)
        named.append(replace(device, name=f"{prefix}:{count}"))
    size = (len(named), len(named))
    matrix = np.broadcast_to(bandwidth, size) / _BYTES_PER_US
    return Cluster(name, tuple(named), matrix, np.broadcast_to(latency_us, size), transfers, link, link_gap_us)


def _k80(name: str, count: int) -> Cluster:
    """The published Placeto simulator: 7600 bytes/us, and 25 us of link time after each delivery."""
    return _cluster(name, [K80] * count, 7.6e9, 0.0, "broadcast", "egress", 25.0)


def _dgx1(name: str, count: int) -> Cluster:
    """The first GPUs of a DGX-1: NVLink where there is one, PCIe and the sockets' link elsewhere."""
    links = _DGX1_LINKS[:count, :count]
    bandwidth = np.where(links > 0, links * NVLINK2, SOCKETS)
    latency_us = np.where(links > 0, LATENCY_US, SOCKETS_LATENCY_US)
    return _cluster(name, [V100] * count, bandwidth, latency_us, link="pair")


def _mixed(name: str) -> Cluster:
    """Two V100 joined by a double NVLink, and two P100, all on one PCIe 3.0 host."""
    bandwidth, latency_us = np.full((4, 4), PCIE3), np.full((4, 4), PCIE_LATENCY_US)
    bandwidth[:2, :2], latency_us[:2, :2] = 2 * NVLINK2, LATENCY_US
    return _cluster(name, [V100] * 2 + [P100] * 2, bandwidth, latency_us)


CLUSTERS: dict[str, Callable[[], Cluster]] = {
    "2xk80": partial(_k80, "2xk80", 2),
    "4xk80": partial(_k80, "4xk80", 4),
    "8xk80": partial(_k80, "8xk80", 8),
    "2xp100": partial(_cluster, "2xp100", [P100] * 2, PCIE3, PCIE_LATENCY_US),
    "4xp100": partial(_cluster, "4xp100", [P100] * 4, PCIE3, PCIE_LATENCY_US),
    "2xv100": partial(_dgx1, "2xv100", 2),
    "4xv100": partial(_dgx1, "4xv100", 4),
    "8xv100": partial(_dgx1, "8xv100", 8),
    # HGX A100, 4 GPUs: four NVLink 3.0 links between each two, 100e9 bytes/s one way on paper.
    "4xa100": partial(_cluster, "4xa100", [A100] * 4, 92e9, 8.0, link="pair"),
    # HGX H100, 8 GPUs: all of a GPU's 450e9 bytes/s (one way, on paper) through the NVSwitch to any other.
    "8xh100": partial(_cluster, "8xh100", [H100] * 8, 380e9, 8.0),
    "cpu+1xh100": partial(_cluster, "cpu+1xh100", [CPU, H100], PCIE5, LATENCY_US),
    "2xv100+2xp100": partial(_mixed, "2xv100+2xp100"),
    # A copy through shared memory: 7.5e9 bytes/s measured; a hand-over between two threads costs about 10 us.
    "2xcpu-core": partial(_cluster, "2xcpu-core", [CPU_CORE] * 2, 7.5e9, 10.0),
}
