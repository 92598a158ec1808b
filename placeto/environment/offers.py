"""Which devices a group is offered: all of a small cluster, nine of a large one.

Legend: G groups, D devices.
"""

from __future__ import annotations

import numpy as np

from placeto.environment.columns import PAIR
from placeto.plumbing.compiling import compiled

ALL_OFFERED = 8
"""Up to this number of devices in a cluster, all are offered. With more devices, the best offered move is worth 92 %
(10 to 16 devices) or 85 % (17 to 32 devices) of the best of all moves, as a mean over states of guided search."""
NEAREST = 4
"""Number of devices offered because the group exchanges most with them."""
IDLEST = 4
"""Number of devices offered because their load would be least with the group."""


@compiled(inner=True)
def offer(current: np.ndarray, devices: int, asked: np.ndarray, pair: np.ndarray, offered: np.ndarray) -> None:
    """Mark the devices that each group is offered: its own, then `NEAREST` others, then `IDLEST` others.

    Up to `ALL_OFFERED` devices, all are offered.

    Args:
        current: (G,) int64, device of each group.
        devices: D.
        asked: (G,) bool, groups that are offered devices; all others are offered none.
        pair: (G, D or more, pair columns), of which affinities and loads are read.
        offered: (G, D or more) bool, False before; set to True where a device is offered.
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
