"""Cost models: how long each op takes on each device.

A cost model is a frozen object with `op_time_us` and a `name`. The name is part of a problem's hash.

Legend: N ops, D devices.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

import numpy as np

from placeto.errors import CostsError
from placeto.problem.cluster import Cluster, Device
from placeto.problem.graph import ComputationGraph


class CostModel(Protocol):
    """What a problem uses of a cost model: a name and the times of ops."""

    @property
    def name(self) -> str:
        """A text that differs for models with other times: it is part of the keys under which results are kept."""

    def op_time_us(self, graph: ComputationGraph, cluster: Cluster) -> np.ndarray:
        """(N, D) float64, microseconds. `PlacementProblem` refuses times that aren't finite."""


def checked_times(costs: CostModel, graph: ComputationGraph, cluster: Cluster) -> np.ndarray:
    """Return the times (N, D) of a cost model, as float64.

    Raises:
        CostsError: they are no array of numbers of this shape, or one of them is negative.
    """
    times, shape = costs.op_time_us(graph, cluster), (graph.num_ops, cluster.num_devices)
    if not isinstance(times, np.ndarray) or times.dtype.kind not in "iuf" or times.shape != shape:
        found = f"shape {times.shape} of {times.dtype}" if isinstance(times, np.ndarray) else type(times).__name__
        raise CostsError(f"cost model {costs.name!r:.60}: op_time_us must return an array of numbers of the shape "
                         f"{shape}, a row for each op and a column for each device, not {found}")  # fmt: skip
    if (times < 0).any():
        op, column = np.argwhere(times < 0)[0]
        device, us = cluster.devices[column].name, times[op, column]
        raise CostsError(f"cost model {costs.name!r:.60}: the time of op {graph.op_names[op]!r:.60} on device "
                         f"{device!r:.60} must be at least 0, not {us:g} us")  # fmt: skip
    return times.astype(np.float64)


def of_devices(cluster: Cluster, time_us: Callable[[Device], np.ndarray]) -> np.ndarray:
    """(N, D) the times of ops on each device, of which `time_us` returns those on one (N,).

    Devices that differ in name and memory alone have the same times, and `time_us` is called once for all of them. So
    it must not depend on the name or the memory.
    """
    number = dict[Device, int]()
    like = [number.setdefault(replace(each, name="device", memory=1), len(number)) for each in cluster.devices]
    columns = [time_us(device) for device in number]
    return np.take(np.stack(columns, axis=1), like, axis=1)


def with_measured(time_us: np.ndarray, graph: ComputationGraph, cluster: Cluster) -> np.ndarray:
    """(N, D) the times, with the graph's measured times in their place where it has them.

    A time that was measured on the device's kind comes before one for all kinds ("*").
    """
    for column, device in enumerate(cluster.devices):
        for kind in ("*", device.kind):
            if kind in graph.time_us:
                measured = graph.time_us[kind]
                time_us[:, column] = np.where(np.isnan(measured), time_us[:, column], measured)
    return time_us
