"""Placement files (format "placeto.placement/1"): which op runs on which device, and what that costs.

Legend: N ops, D devices.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from placeto.problem.fields import (
    Field,
    flag,
    integer,
    listed,
    mapping,
    number,
    optional,
    quote,
    read_fields,
    read_json,
    size,
    text,
    within,
    write_json,
)
from placeto.simulator.schedule import PlacementError, simulate

if TYPE_CHECKING:
    from placeto.problem.cluster import Cluster
    from placeto.problem.graph import ComputationGraph
    from placeto.simulator.evaluator import PlacementResult

__all__ = [
    "FORMAT",
    "PlacementError",
    "PlacementFile",
    "load_placement",
    "save_placement",
]

FORMAT = "placeto.placement/1"
_FIELDS = {
    "format": Field(text),
    "placement": Field(mapping(text)),
    "graph_hash": Field(optional(text), None),
    "cluster": Field(optional(text), None),
    "makespan_us": Field(optional(number()), None),
    "peak_memory": Field(mapping(size), {}),
    "fits": Field(optional(flag), None),
    "placer": Field(optional(text), None),
    "simulations": Field(optional(integer()), None),
    "seconds": Field(optional(number()), None),
}


@dataclass(frozen=True)
class PlacementFile:
    """The content of a placement file; whatever is None was left out of it."""

    placement: Mapping[str, str]  # op name -> device name
    graph_hash: str | None = None
    cluster: str | None = None  # name of the cluster
    makespan_us: float | None = None
    peak_memory: Mapping[str, int] = field(default_factory=dict)  # device name -> bytes
    fits: bool | None = None
    placer: str | None = None
    simulations: int | None = None
    seconds: float | None = None

    def devices(self, graph: ComputationGraph, cluster: Cluster) -> np.ndarray:
        """(N,) int64, the device index of each op, in the order of ``graph.op_names``.

        Raises:
            PlacementError: the file is for another graph, leaves an op out, or names an unknown op or device.
        """
        for op in graph.op_names:
            if op not in self.placement:
                raise PlacementError(f"op {quote(op)} of graph {quote(graph.name)} has no device in the placement")
        index = {name: i for i, name in enumerate(cluster.device_names)}
        for op, device in self.placement.items():
            if op not in graph.index:
                raise PlacementError(f"op {quote(op)} of the placement is not in graph {quote(graph.name)}")
            if device not in index:
                known = f"is not in cluster {quote(cluster.name)}, which has {listed(cluster.device_names)}"
                raise PlacementError(f"op {quote(op)}: device {quote(device)} {known}")
        if self.graph_hash is not None and self.graph_hash != graph.hash:
            theirs, ours = quote(self.graph_hash[:12]), quote(graph.hash[:12])
            raise PlacementError(f"the placement is for another graph: its hash begins {theirs}, not {ours}")
        return np.array([index[self.placement[op]] for op in graph.op_names], np.int64)


def load_placement(path: str | Path) -> PlacementFile:
    """Read a placement file; `PlacementFile.devices` turns it into an array.

    Raises:
        PlacementError: the file is no placement; the message names file and field.
        OSError: the file can't be read.
    """
    document = read_json(path, PlacementError)
    with within(PlacementError, path):
        if not isinstance(document, dict) or document.get("format") != FORMAT:
            raise PlacementError(f'not a placement file: "format" must be "{FORMAT}"')
        values = read_fields(document, _FIELDS, PlacementError)
    return PlacementFile(**{key: value for key, value in values.items() if key != "format"})


def save_placement(placement: PlacementFile | PlacementResult, path: str | Path) -> None:
    """Write a placement file; of a placer's result with the memory that the simulator gives it. None is left out."""
    file = placement if isinstance(placement, PlacementFile) else _described(placement)
    document: dict[str, Any] = {"format": FORMAT}
    values = {key: value for key, value in vars(file).items() if value is not None}
    order = ["graph_hash", "cluster", "makespan_us", "fits", "peak_memory", "placer", "simulations", "seconds"]
    document.update({key: values[key] for key in order if key in values})
    document["placement"] = dict(file.placement)
    write_json(document, path)


def _described(result: PlacementResult) -> PlacementFile:
    graph, cluster = result.problem.graph, result.problem.cluster
    schedule = simulate(result.problem, result.placement)
    return PlacementFile(
        placement=result.devices(),
        graph_hash=graph.hash,
        cluster=cluster.name,
        makespan_us=float(schedule.makespan_us),
        peak_memory=dict(zip(cluster.device_names, schedule.peak_memory.tolist(), strict=True)),
        fits=schedule.fits,
        placer=result.placer or None,
        simulations=int(result.simulations),
        seconds=float(result.seconds),
    )
