"""Op times from datasheets alone: the time to compute or the time to access memory, whichever is longer.

Legend: N ops, D devices.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from placeto.problem.cluster import Cluster, Device
from placeto.problem.costs.cost_model import of_devices
from placeto.problem.graph import ComputationGraph


@dataclass(frozen=True)
class Roofline:
    """max(flops / peak, bytes_accessed / memory_bandwidth): Williams et al., "Roofline", CACM 2009.

    The peak is that of the op's dtype, for every type of op.
    """

    @property
    def name(self) -> str:
        """The name without further content: the model has no settings."""
        return "roofline"

    def op_time_us(self, graph: ComputationGraph, cluster: Cluster) -> np.ndarray:
        """(N, D) float64, microseconds."""

        def time_us(device: Device) -> np.ndarray:
            peaks = {dtype: device.peak(dtype) for dtype in set(graph.dtypes)}
            peak = np.array([peaks[dtype] for dtype in graph.dtypes])
            compute, access = graph.flops / peak, graph.bytes_accessed / device.memory_bandwidth
            return np.maximum(compute, access) * 1e6

        with np.errstate(over="ignore"):  # problems refuse times that aren't finite
            return of_devices(cluster, time_us)


ROOFLINE = Roofline()
