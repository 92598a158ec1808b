"""Cost models: how long each op takes on each device.

A cost model is a frozen object with `op_time_us` and a `name`; it is part of a problem's identity.

Legend: N ops, D devices.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from os import PathLike
from pathlib import Path
from typing import Protocol

import numpy as np

from placeto.problem.cluster import Cluster
from placeto.problem.fields import quote, read_json
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


@dataclass(frozen=True)
class Roofline:
    """max(flops / peak, bytes_accessed / memory_bandwidth): Williams et al., "Roofline", CACM 2009.

    The peak is that of the op's dtype, whatever the op.
    """

    @property
    def name(self) -> str:
        """It has no settings."""
        return "roofline"

    def op_time_us(self, graph: ComputationGraph, cluster: Cluster) -> np.ndarray:
        """(N, D) float64, microseconds."""
        time = np.empty((graph.num_ops, cluster.num_devices))
        with np.errstate(over="ignore"):  # a problem refuses what is not finite
            for column, device in enumerate(cluster.devices):
                peaks = {dtype: device.peak(dtype) for dtype in set(graph.dtypes)}
                peak = np.array([peaks[dtype] for dtype in graph.dtypes])
                compute, access = graph.flops / peak, graph.bytes_accessed / device.memory_bandwidth
                time[:, column] = np.maximum(compute, access) * 1e6
        return time


ROOFLINE = Roofline()

NAMES = ("efficiency", "roofline")
_FORMATS = {
    "placeto.efficiency/1": ("placeto.problem.efficiency", "load_efficiency"),
    "placeto.costs/1": ("placeto.problem.profiled", "load_profiled"),
}
"""Of a file of costs: the module and the function that read it, imported when such a file is met."""


def load_costs(name_or_path: str | Path) -> CostModel:
    """A cost model by name, or from a file (``.json``, ``.json.gz``) of one of the formats above.

    Raises:
        CostsError: no such name, or not such a file; the message says what would be valid.
        OSError: the file can't be read.
    """
    if not isinstance(name_or_path, str | PathLike):
        known = f"one of {', '.join(NAMES)}, or the path of a .json file"
        raise CostsError(f"costs must be a cost model, {known}, not {quote(name_or_path)}")
    if str(name_or_path) == "roofline":
        return ROOFLINE
    if str(name_or_path) == "efficiency":
        model: CostModel = import_module("placeto.problem.efficiency").EFFICIENCY
        return model
    if not str(name_or_path).endswith((".json", ".json.gz")):
        known = ", ".join(NAMES)
        raise CostsError(f"unknown costs {quote(str(name_or_path))}: known are {known}, or name a .json file")
    if not Path(name_or_path).exists():
        raise CostsError(
            f"costs {quote(str(name_or_path))}: there is no such file; by name there are {', '.join(NAMES)}"
        )
    document = read_json(name_or_path, CostsError)
    form = document.get("format") if isinstance(document, dict) else None
    if not isinstance(form, str) or form not in _FORMATS:
        raise CostsError(f'{name_or_path}: not a file of costs: "format" must be one of {", ".join(_FORMATS)}')
    module, function = _FORMATS[form]
    loaded: CostModel = getattr(import_module(module), function)(name_or_path)
    return loaded


def with_measured(time_us: np.ndarray, graph: ComputationGraph, cluster: Cluster) -> np.ndarray:
    """(N, D) the times, but those that the graph gives where it does: of a device's kind, else of all kinds ("*")."""
    time_us = time_us.copy()
    for column, device in enumerate(cluster.devices):
        for kind in ("*", device.kind):
            if kind in graph.time_us:
                measured = graph.time_us[kind]
                time_us[:, column] = np.where(np.isnan(measured), time_us[:, column], measured)
    return time_us
