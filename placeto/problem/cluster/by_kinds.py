"""Clusters whose names say how many boards of which kind one host has, such as 4xrtx3090 or 2xh100+1xl4.

Links are assumed: those of `placeto.problem.cluster.presets.on_one_host`.
"""

from __future__ import annotations

import re

from placeto.errors import ClusterError
from placeto.problem.cluster.cluster import Cluster
from placeto.problem.cluster.presets import MOST, NVLINKS, SLOTS, on_one_host

_HOW = "write a cluster file, from a preset by `placeto cluster 4xv100 -o mine.json` or from what nvidia-smi prints"
KINDS = ("k80", *SLOTS)
"""Kinds of boards that such names may have."""


def of_kinds(name: str) -> tuple[Cluster, str] | None:
    """Return the cluster of a name such as 4xrtx3090, and a sentence for users on its links; None for other names.

    Raises:
        ClusterError: the name has more than 8 boards, or more of a kind than are known to be linked.
    """
    parts = [re.fullmatch(r"(\d+)x(.+)", part) for part in name.split("+")]
    counts = {part[2]: int(part[1]) for part in parts if part is not None and part[2] in KINDS and int(part[1])}
    if len(counts) < len(parts) or ("k80" in counts and len(counts) > 1):
        return None
    if sum(counts.values()) > MOST:
        raise ClusterError(f"{name}: a host has {MOST} boards at most: {_HOW}")
    for kind in counts.keys() & NVLINKS.keys():
        if counts[kind] > (most := len(NVLINKS[kind][0])):
            raise ClusterError(f"{name}: no preset says how more than {most} {kind} are linked: {_HOW}")
    cluster = on_one_host(name, counts)
    links = f": its links are assumed, with {cluster.bandwidth.min() / 1e3:g} GB/s or more"
    return cluster, f"{name} is no preset{links if cluster.num_devices > 1 else ''}"
