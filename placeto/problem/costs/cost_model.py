"""Cost models: how long each op takes on each device.

A cost model is a frozen object with `op_time_us` and a `name`; it is part of a problem's identity.

Legend: N ops, D devices.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from placeto.problem.cluster import Cluster
from placeto.problem.graph import ComputationGraph


class CostsError(ValueError):
    """An unknown cost model, or a file of costs that breaks a rule of its format."""


class CostModel(Protocol):
    """What a problem needs of a cost model; equal ones are the same to it."""

    @property
    def name(self) -> str:
        """What tells it from others, with all that decides its times: part of keys of kept results."""

    def op_time_us(self, graph: ComputationGraph, cluster: Cluster) -> np.ndarray:
        """(N, D) float64, microseconds; what is not finite is refused by the problem."""


def with_measured(time_us: np.ndarray, graph: ComputationGraph, cluster: Cluster) -> np.ndarray:
    """(N, D) the times, but those that the graph gives where it does: of a device's kind, else of all kinds ("*")."""
    time_us = time_us.copy()
    for column, device in enumerate(cluster.devices):
        for kind in ("*", device.kind):
            if kind in graph.time_us:
                measured = graph.time_us[kind]
                time_us[:, column] = np.where(np.isnan(measured), time_us[:, column], measured)
    return time_us
