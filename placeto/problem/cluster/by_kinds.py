"""Clusters whose names say how many boards of which kind one host has, such as 4xrtx3090 or 2xh100+1xl4.

Links are assumed. Boards of one kind have the links of a preset of this kind. Transfers between two kinds have the
lower bandwidth and the longer latency of the PCIe slots of both.

Legend: D devices.
"""

from __future__ import annotations

import re

import numpy as np

from placeto.errors import ClusterError
from placeto.problem.cluster.cluster import Cluster
from placeto.problem.cluster.presets import (
    CLUSTERS,
    PCIE3,
    PCIE4,
    PCIE5,
    PCIE_LATENCY_US,
    SOCKETS_LATENCY_US,
    k80s,
    named_devices,
)

MOST = 8
"""Most boards of a host."""
_HOW = "write a cluster file, from a preset by `placeto cluster 4xv100 -o mine.json` or from what nvidia-smi prints"
_DESKTOP = PCIE4 / 2, SOCKETS_LATENCY_US
_SLOTS = {  # kind -> bytes/s and microseconds of its slot, as in the presets of boards without NVLink
    **dict.fromkeys(("p100", "p40", "v100", "t4"), (PCIE3, PCIE_LATENCY_US)),
    **dict.fromkeys(("a10", "a100", "a100-40gb", "l4"), (PCIE4, PCIE_LATENCY_US)),
    **dict.fromkeys(("rtx3090", "rtx4090"), _DESKTOP),
    **dict.fromkeys(("h100", "h200", "b200"), (PCIE5, PCIE_LATENCY_US)),
}
KINDS = ("k80", *_SLOTS)
"""Kinds of boards that such names may have."""


def of_kinds(name: str) -> tuple[Cluster, str] | None:
    """Return the cluster of a name such as 4xrtx3090, and a sentence for users on its links; None for other names.

    Raises:
        ClusterError: the name has more than 8 boards, or no preset says how that many boards of a kind are linked.
    """
    parts = [re.fullmatch(r"(\d+)x(.+)", part) for part in name.split("+")]
    counts = [(int(part[1]), part[2]) for part in parts if part is not None and part[2] in _SLOTS and int(part[1])]
    if len(parts) == 1 and parts[0] is not None and parts[0][2] == "k80" and 0 < int(parts[0][1]) <= MOST:
        return k80s(name, int(parts[0][1])), f"{name} is no preset: its links are assumed, as in the preset 8xk80"
    if len(counts) < len(parts) or len({kind for _, kind in counts}) < len(counts):
        return None
    total = sum(count for count, _ in counts)
    if total > MOST:
        raise ClusterError(f"{name}: a host has {MOST} boards at most: {_HOW}")
    hosts = [_boards(name, count, kind) for count, kind in counts]
    bandwidth, latency_us = np.zeros((total, total)), np.zeros((total, total))
    bounds = np.cumsum([0, *(count for count, _ in counts)]).tolist()
    for i, (cluster, (_, kind)) in enumerate(zip(hosts, counts, strict=True)):
        for j, (_, other) in enumerate(counts):
            at = np.ix_(range(bounds[i], bounds[i + 1]), range(bounds[j], bounds[j + 1]))
            slots = _SLOTS[kind], _SLOTS[other]
            bandwidth[at] = cluster.bandwidth if i == j else min(slot for slot, _ in slots) / 1e6  # bytes/us
            latency_us[at] = cluster.latency_us if i == j else max(latency for _, latency in slots)
    devices = named_devices([device for cluster in hosts for device in cluster.devices])
    link = hosts[0].link if len(hosts) == 1 else "egress"
    cluster_of_all = Cluster(name, devices, bandwidth, latency_us, "unicast", link, 0.0, "priority")
    like = " and ".join(dict.fromkeys(cluster.name for cluster in hosts if len(cluster.devices) > 1))
    links = [f"as in the preset {like}"] if like else []
    if len(hosts) > 1:
        slot = min(_SLOTS[kind][0] for _, kind in counts)
        links.append(f"between kinds those of PCIe slots, from {slot / 1e9:g} GB/s on")
    told = f"{name} is no preset: its links are assumed, {'; '.join(links)}" if links else f"{name} is no preset"
    return cluster_of_all, told


def _boards(name: str, count: int, kind: str) -> Cluster:
    """A cluster of `count` boards of a kind, with the name of the preset whose links it has.

    Raises:
        ClusterError: no preset says how that many boards are linked; the message begins with `name`.
    """
    alike = sorted(
        (cluster for cluster in (make() for make in CLUSTERS.values()) if _is_host_of(cluster, kind)),
        key=lambda cluster: len(cluster.devices),
    )
    if not alike:  # only a preset with other kinds has boards of this kind
        alike = [next(c for c in (make() for make in CLUSTERS.values()) if any(d.kind == kind for d in c.devices))]
    preset = next((cluster for cluster in alike if len(cluster.devices) >= count), alike[-1])
    size = len(preset.devices)
    device = next(device for device in preset.devices if device.kind == kind)
    if count <= size:
        bandwidth, latency_us = preset.bandwidth[:count, :count], preset.latency_us[:count, :count]
    elif preset.link == "egress" and size > 1:
        bandwidth, latency_us = (
            np.full((count, count), matrix[0, 1]) for matrix in (preset.bandwidth, preset.latency_us)
        )
    else:
        raise ClusterError(f"{name}: no preset says how more than {size} {kind} are linked: {_HOW}")
    named = named_devices([device] * count)
    return Cluster(preset.name, named, bandwidth, latency_us, preset.transfers, preset.link, 0.0, "priority")


def _is_host_of(cluster: Cluster, kind: str) -> bool:
    """Whether a preset has boards of this kind alone, on one host."""
    return {device.kind for device in cluster.devices} == {kind} and not cluster.shared_links
