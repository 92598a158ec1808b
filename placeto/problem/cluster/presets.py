"""The clusters that have a name (presets), with the sources of their numbers.

Legend: D devices.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from placeto.problem.cluster.boards import (
    A10,
    A100,
    A100_40GB,
    B200,
    CPU,
    CPU_CORE,
    CPU_LAPTOP,
    CPU_M2_ULTRA,
    H100,
    H200,
    K80,
    L4,
    M2_ULTRA,
    P40,
    P100,
    RTX3090,
    RTX4090,
    T4,
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


def k80s(name: str, count: int) -> Cluster:
    """K80s linked as in the published Placeto simulator: 7600 bytes/us, and 25 us of link time after each delivery."""
    return _cluster(name, [K80] * count, 7.6e9, 0.0, "broadcast", "egress", 25.0, "fifo")


def _dgx1(name: str, count: int) -> Cluster:
    """The first `count` GPUs of a DGX-1: NVLink between pairs that have one, else PCIe and the link of the sockets."""
    links = _DGX1_LINKS[:count, :count]
    bandwidth = np.where(links > 0, links * NVLINK2, SOCKETS)
    latency_us = np.where(links > 0, LATENCY_US, SOCKETS_LATENCY_US)
    return _cluster(name, [V100] * count, bandwidth, latency_us, link="pair")


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


CLUSTERS: dict[str, Callable[[], Cluster]] = {
    "2xk80": partial(k80s, "2xk80", 2),
    "4xk80": partial(k80s, "4xk80", 4),
    "8xk80": partial(k80s, "8xk80", 8),
    "2xp100": partial(_cluster, "2xp100", [P100] * 2, PCIE3, PCIE_LATENCY_US),
    "4xp100": partial(_cluster, "4xp100", [P100] * 4, PCIE3, PCIE_LATENCY_US),
    "8xp40": partial(_cluster, "8xp40", [P40] * 8, PCIE3, PCIE_LATENCY_US),
    "2xv100": partial(_dgx1, "2xv100", 2),
    "4xv100": partial(_dgx1, "4xv100", 4),
    "8xv100": partial(_dgx1, "8xv100", 8),
    # HGX A100, 4 GPUs: four NVLink 3.0 links between each two, 100e9 bytes/s one way on paper.
    "4xa100": partial(_cluster, "4xa100", [A100] * 4, 92e9, 8.0, link="pair"),
    # HGX H100, 8 GPUs: all of a GPU's 450e9 bytes/s (one way, on paper) through the NVSwitch to any other.
    "8xh100": partial(_cluster, "8xh100", [H100] * 8, 380e9, 8.0),
    # DGX A100 with 40 GB: 300e9 bytes/s one way through the NVSwitch on paper; its share as for the H100.
    "8xa100-40gb": partial(_cluster, "8xa100-40gb", [A100_40GB] * 8, 253e9, 8.0),
    "8xh200": partial(_cluster, "8xh200", [H200] * 8, 380e9, 8.0),
    # NVLink 5: 900e9 bytes/s one way on paper; its share as for the H100.
    "8xb200": partial(_cluster, "8xb200", [B200] * 8, 760e9, 8.0),
    # Servers' boards on PCIe alone: 3.0 x16 for the T4, 4.0 x16 for the others.
    "2xt4": partial(_cluster, "2xt4", [T4] * 2, PCIE3, PCIE_LATENCY_US),
    "4xt4": partial(_cluster, "4xt4", [T4] * 4, PCIE3, PCIE_LATENCY_US),
    "4xl4": partial(_cluster, "4xl4", [L4] * 4, PCIE4, PCIE_LATENCY_US),
    "4xa10": partial(_cluster, "4xa10", [A10] * 4, PCIE4, PCIE_LATENCY_US),
    # Desktops: two slots share 16 lanes of PCIe 4.0, and drivers of these boards copy through the host's memory.
    "2xrtx3090": partial(_cluster, "2xrtx3090", [RTX3090] * 2, PCIE4 / 2, SOCKETS_LATENCY_US),
    "2xrtx4090": partial(_cluster, "2xrtx4090", [RTX4090] * 2, PCIE4 / 2, SOCKETS_LATENCY_US),
    "2xrtx3090+1xrtx4090": partial(
        _cluster, "2xrtx3090+1xrtx4090", [RTX3090] * 2 + [RTX4090], PCIE4 / 2, SOCKETS_LATENCY_US
    ),
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
