"""The clusters that have a name (presets), with the sources of their numbers.

Legend: D devices.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from placeto.problem.cluster.boards import (
    CPU,
    CPU_CORE,
    CPU_LAPTOP,
    CPU_M2_ULTRA,
    H100,
    K80,
    M2_ULTRA,
    NVIDIA,
    P100,
    RTX3090,
    V100,
)
from placeto.problem.cluster.cluster import Cluster, Device
from placeto.problem.cluster.topology import Link, Topology

PCIE3 = 12e9  # bytes/s that a PCIe 3.0 x16 slot moves in practice (15.75e9 on paper)
PCIE4 = 24e9  # 31.5e9 on paper
PCIE5 = 50e9  # 63e9 on paper
SOCKETS = 9e9  # PCIe 3.0 between two sockets, through their QPI link and host memory
NVLINK2 = 24e9  # one NVLink 2.0 link, one direction (25e9 on paper)
LATENCY_US, PCIE_LATENCY_US, SOCKETS_LATENCY_US = 10.0, 15.0, 20.0

MOST = 8
"""Most boards of a host."""
_DESKTOP = PCIE4 / 2, SOCKETS_LATENCY_US  # two slots share 16 lanes, and drivers of these boards copy through the host
SLOTS = {
    **dict.fromkeys(("p100", "p40", "v100", "t4"), (PCIE3, PCIE_LATENCY_US)),
    **dict.fromkeys(("a10", "a100", "a100-40gb", "l4"), (PCIE4, PCIE_LATENCY_US)),
    **dict.fromkeys(("rtx3090", "rtx4090"), _DESKTOP),
    **dict.fromkeys(("h100", "h200", "b200"), (PCIE5, PCIE_LATENCY_US)),
}
"""Kind of boards -> bytes/s and microseconds of its slot."""
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


def _equal(size: int, bandwidth: float) -> tuple[np.ndarray, np.ndarray]:
    return np.full((size, size), bandwidth), np.full((size, size), 8.0)


NVLINKS = {
    # A pair of GPUs has NVLink, or PCIe and the link of the sockets.
    "v100": (
        np.where(_DGX1_LINKS > 0, _DGX1_LINKS * NVLINK2, SOCKETS),
        np.where(_DGX1_LINKS > 0, LATENCY_US, SOCKETS_LATENCY_US),
    ),
    # HGX A100, 4 GPUs: four NVLink 3.0 links between each two, 100e9 bytes/s one way on paper.
    "a100": _equal(4, 92e9),
    # HGX H100, 8 GPUs: all of a GPU's 450e9 bytes/s (one way, on paper) through the NVSwitch to any other.
    "h100": _equal(8, 380e9),
    "h200": _equal(8, 380e9),
    # DGX A100 with 40 GB: 300e9 bytes/s one way through the NVSwitch on paper; its share as for the H100.
    "a100-40gb": _equal(8, 253e9),
    # NVLink 5: 900e9 bytes/s one way on paper; its share as for the H100.
    "b200": _equal(8, 760e9),
}
"""Kind of boards -> bytes/s and microseconds between two boards of a host, each for as many boards as it joins."""
_EACH_PAIR = "v100", "a100"  # kinds of which each pair of boards has links of its own


def _cluster(
    name: str,
    devices: Sequence[Device],
    bandwidth: float | np.ndarray,
    latency_us: float | np.ndarray,
    transfers: str = "unicast",
    link: str = "egress",
    link_gap_us: float = 0.0,
    dispatch: str = "priority",
) -> Cluster:
    """A preset with devices named "gpu:0"... (or "cpu:0"...) in order.

    `bandwidth` in bytes/s and `latency_us` are one number or (D, D).
    """
    named = named_devices(devices)
    size = (len(named), len(named))
    matrix = np.broadcast_to(bandwidth, size) / 1e6  # bytes/us
    return Cluster(name, named, matrix, np.broadcast_to(latency_us, size), transfers, link, link_gap_us, dispatch)


def named_devices(devices: Sequence[Device]) -> tuple[Device, ...]:
    """Return copies of devices with the names "gpu:0"... (or "cpu:0"...), in order."""
    named: list[Device] = []
    for device in devices:
        prefix = "cpu" if device.is_cpu else "gpu"
        count = sum(other.name.startswith(prefix) for other in named)
        named.append(replace(device, name=f"{prefix}:{count}"))
    return tuple(named)


def on_one_host(name: str, counts: Mapping[str, int]) -> Cluster:
    """So many boards of each kind on one host, or K80s alone.

    Boards of one kind have its NVLinks if there are any. Transfers between two kinds have the lower bandwidth and the
    longer latency of the slots of both. K80s are linked as in the published Placeto simulator: 7600 bytes/us, and 25 us
    of link time after each delivery.
    """
    if "k80" in counts:
        return _cluster(name, [K80] * counts["k80"], 7.6e9, 0.0, "broadcast", "egress", 25.0, "fifo")
    kinds = np.repeat(list(counts), list(counts.values()))
    rates, latencies = np.array([SLOTS[kind] for kind in kinds]).T
    bandwidth, latency_us = np.minimum.outer(rates, rates), np.maximum.outer(latencies, latencies)
    for kind in counts.keys() & NVLINKS.keys():
        own, first = np.ix_(kinds == kind, kinds == kind), slice(counts[kind])
        bandwidth[own], latency_us[own] = (links[first, first] for links in NVLINKS[kind])
    link = "pair" if len(counts) == 1 and kinds[0] in _EACH_PAIR else "egress"
    return _cluster(name, [NVIDIA[kind] for kind in kinds], bandwidth, latency_us, link=link)


def _mixed(name: str) -> Cluster:
    """Two V100 joined by a double NVLink, and two P100, all on one PCIe 3.0 host."""
    bandwidth, latency_us = np.full((4, 4), PCIE3), np.full((4, 4), PCIE_LATENCY_US)
    bandwidth[:2, :2], latency_us[:2, :2] = 2 * NVLINK2, LATENCY_US
    return _cluster(name, [V100] * 2 + [P100] * 2, bandwidth, latency_us)


def _hosts(name: str, device: Device, topology: Topology) -> Cluster:
    """Devices of one kind on several hosts, whose network cards they share."""
    return Cluster.from_topology(name, named_devices([device] * topology.num_devices), topology)


# Two hosts, each with four V100 like a quad of the DGX-1: 8 NVLinks among 6 pairs, here spread evenly. 25 Gb/s Ethernet
# is 3.125e9 bytes/s, of which TCP leaves 1448 in each 1538 of a full frame (IEEE 802.3). Latency through both hosts'
# memory: an estimate. The four GPUs of a host share its card.
_2X4XV100 = Topology(
    ((4,), (4,)), island=Link(8 / 6 * NVLINK2, LATENCY_US), network=Link(2.9e9, 50.0), card=Link(2.9e9)
)


def _dgx_h100(hosts: int) -> Topology:
    """NVSwitch in each host (as in 8xh100), and a ConnectX-7 with 400 Gb/s of InfiniBand for each GPU.

    The latter is 50e9 bytes/s on paper (DGX H100 datasheet). The share of it that transfers get, and the latency, are
    estimates.
    """
    return Topology(((8,),) * hosts, island=Link(380e9, 8.0), network=Link(45e9, 15.0), card=Link(45e9), cards=8)


_OF_ONE_KIND = (
    "2xk80 4xk80 8xk80 2xp100 4xp100 8xp40 2xv100 4xv100 8xv100 4xa100 8xh100 8xa100-40gb 8xh200 8xb200 2xt4 4xt4 4xl4 "
    "4xa10 2xrtx3090 2xrtx4090"
)
CLUSTERS: dict[str, Callable[[], Cluster]] = {
    **{name: partial(on_one_host, name, {name[2:]: int(name[0])}) for name in _OF_ONE_KIND.split()},
    "2xrtx3090+1xrtx4090": partial(on_one_host, "2xrtx3090+1xrtx4090", {"rtx3090": 2, "rtx4090": 1}),
    # A board in a box on Thunderbolt 4, which tunnels 32 Gb/s of PCIe: 4e9 bytes/s on paper.
    "cpu-laptop+1xrtx3090": partial(_cluster, "cpu-laptop+1xrtx3090", [CPU_LAPTOP, RTX3090], 2.8e9, 20.0),
    # Unified memory: a copy reads and writes it, at 800e9 bytes/s together.
    "cpu+1xm2-ultra": partial(_cluster, "cpu+1xm2-ultra", [CPU_M2_ULTRA, M2_ULTRA], 400e9, LATENCY_US),
    "2x4xv100": partial(_hosts, "2x4xv100", V100, _2X4XV100),
    "2x8xh100": partial(_hosts, "2x8xh100", H100, _dgx_h100(2)),
    "8x8xh100": partial(_hosts, "8x8xh100", H100, _dgx_h100(8)),
    "cpu+1xh100": partial(_cluster, "cpu+1xh100", [CPU, H100], PCIE5, LATENCY_US),
    "2xv100+2xp100": partial(_mixed, "2xv100+2xp100"),
    # A copy through shared memory: 7.5e9 bytes/s measured; a hand-over between two threads costs about 10 us.
    "2xcpu-core": partial(_cluster, "2xcpu-core", [CPU_CORE] * 2, 7.5e9, 10.0),
}
