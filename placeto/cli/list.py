"""``placeto list``: list the graph families, clusters, placers or rewards."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
from tyro.conf import Positional

from placeto.cli.shared.common import say
from placeto.placers import families, first_line, load_family, placer_names
from placeto.plumbing.terminal import table

if TYPE_CHECKING:
    from placeto.problem.cluster import Cluster, Device


@dataclass(frozen=True)
class Arguments:
    """List the graph families, clusters, placers, rewards of moves or rewards of whole placements, one a line."""

    what: Positional[Literal["families", "clusters", "placers", "rewards", "placement-rewards"]]
    """what to list"""


def run(arguments: Arguments) -> None:
    """Print the list."""
    from placeto.problem.cluster import CLUSTERS

    tables: dict[str, Callable[[], dict[str, str]]] = {
        "families": lambda: {name: load_family(name).description for name in families()},
        "clusters": lambda: {name: describe_cluster(factory()) for name, factory in CLUSTERS.items()},
        "placers": placer_names,
        "rewards": _rewards,
        "placement-rewards": _placement_rewards,
    }
    say(table(tables[arguments.what]().items()))


def _rewards() -> dict[str, str]:
    from placeto.environment.rewards import find_reward, reward_names  # they need torch

    return {name: first_line(find_reward(name)) for name in reward_names()}


def _placement_rewards() -> dict[str, str]:
    from placeto.environment.rewards import find_placement_reward, placement_reward_names

    return {name: first_line(find_placement_reward(name)) for name in placement_reward_names()}


def _peaks(device: Device) -> str:
    """Return peak speeds in TFLOP/s: of float32, and those of tf32 and 16 bits if they differ."""
    peaks = {device.peak(dtype): None for dtype in ("float32", "tf32", "float16")}
    return "/".join(f"{peak / 1e12:.3g}" for peak in peaks)


def describe_cluster(cluster: Cluster) -> str:
    """Describe the devices and links of a cluster in a sentence."""
    counts = Counter(device.kind for device in cluster.devices)
    kinds = {device.kind: device for device in cluster.devices}
    parts = []
    for kind, device in kinds.items():
        size = f"{_peaks(device)} TFLOP/s, {device.memory / 1e9:.3g} GB{' each' if counts[kind] > 1 else ''}"
        launch = f", {device.launch_us:.3g} us to launch an op" if device.launch_us else ""
        parts.append(f"{counts[kind]} {kind.upper()} ({size}{launch})")
    rates = cluster.bandwidth[~np.eye(cluster.num_devices, dtype=bool)] / 1e3  # GB/s
    if not len(rates):
        return f"{parts[0]}; no links."
    speed = f"{rates.min():.3g}" if rates.min() == rates.max() else f"{rates.min():.3g} to {rates.max():.3g}"
    link = {"pair": "one per pair of devices", "egress": "one per sender", "free": "free"}[cluster.link]
    shared = f", {len(cluster.shared_links)} shared" if cluster.shared_links else ""
    return f"{' and '.join(parts)}; links of {speed} GB/s, {link}{shared}, {cluster.transfers}; {cluster.dispatch}."
