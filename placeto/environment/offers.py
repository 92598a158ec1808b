"""Which devices a group is offered: on a cluster of many, a few that are worth a closer look.

Legend: G groups, D devices.
"""

from __future__ import annotations

import numpy as np

from placeto.compiling import compiled
from placeto.environment.columns import PAIR

ALL_OFFERED = 8
"""Devices of a cluster, up to which every one is offered. What is offered of more of them holds moves that are worth
92 % (10 to 16 devices) and 85 % (17 to 32) of what the best of all is, in the mean over states of guided search."""
NEAREST = 4
"""Devices with which a group exchanges most."""
IDLEST = 4
"""Devices whose load would be least with the group."""


@compiled(inner=True)
def offer(current: np.ndarray, devices: int, asked: np.ndarray, pair: np.ndarray, offered: np.ndarray) -> None:
    """Mark the devices among which each group may choose: its own, its nearest, and the idlest.

    Args:
        current: (G,) int64, device of each group.
        devices: D.
        asked: (G,) bool; the others are offered nothing.
        pair: (G, D or more, pair columns), of which affinities and loads are read.
        offered: (G, D or more) bool, to be filled; False before.
    """
    for g in range(len(asked)):
        if not asked[g]:
            continue
        if devices <= ALL_OFFERED:
            offered[g, :devices] = True
            continue
        offered[g, current[g]] = True
        for near in range(NEAREST + IDLEST):
            best, least = -1, np.inf
            for d in range(devices):
                if near < NEAREST:
                    cost = -(pair[g, d, PAIR.affinity_in] + pair[g, d, PAIR.affinity_out])
                else:
                    cost = pair[g, d, PAIR.load_after]
                if not offered[g, d] and cost < least:
                    best, least = d, cost
            offered[g, best] = True
