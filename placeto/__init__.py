"""Placeto: places neural-network computation graphs on devices.

>>> import placeto
>>> graph = placeto.ComputationGraph.from_ops("pair", [
...     {"name": "a", "outputs": [4], "time_us": {"*": 3.0}},
...     {"name": "b", "inputs": [["a", 0]], "time_us": {"*": 2.0}}])
>>> problem = placeto.PlacementProblem(graph, placeto.load_cluster("2xp100"))
>>> placeto.simulate(problem, [0, 0]).fits
True

Names are imported when first used, so that importing the package is quick.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from placeto.capture import capture_inference, capture_training
    from placeto.cluster import Cluster, ClusterError, Device, load_cluster, save_cluster
    from placeto.cost import PlacementProblem
    from placeto.graph import ComputationGraph, GraphError, load_graph, save_graph
    from placeto.load import Placer, load_placer
    from placeto.placement import PlacementFile, load_placement, save_placement
    from placeto.placer import PlacementResult
    from placeto.placing import place
    from placeto.simulator import PlacementError, Schedule, simulate

_MODULES = {
    "Cluster": "cluster",
    "ClusterError": "cluster",
    "ComputationGraph": "graph",
    "Device": "cluster",
    "GraphError": "graph",
    "PlacementError": "simulator",
    "PlacementFile": "placement",
    "PlacementProblem": "cost",
    "PlacementResult": "placer",
    "Placer": "load",
    "Schedule": "simulator",
    "capture_inference": "capture",
    "capture_training": "capture",
    "load_cluster": "cluster",
    "load_graph": "graph",
    "load_placement": "placement",
    "load_placer": "load",
    "place": "placing",
    "save_cluster": "cluster",
    "save_graph": "graph",
    "save_placement": "placement",
    "simulate": "simulator",
}

__all__ = [  # noqa: RUF022 - in the order in which one meets them
    "ComputationGraph",
    "GraphError",
    "load_graph",
    "save_graph",
    "capture_training",
    "capture_inference",
    "Cluster",
    "ClusterError",
    "Device",
    "load_cluster",
    "save_cluster",
    "PlacementProblem",
    "Schedule",
    "simulate",
    "place",
    "PlacementResult",
    "Placer",
    "load_placer",
    "PlacementError",
    "PlacementFile",
    "load_placement",
    "save_placement",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'placeto' has no attribute {name!r}")
    value = getattr(import_module(f"placeto.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_MODULES])
