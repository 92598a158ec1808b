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

from typing import TYPE_CHECKING

from placeto.plumbing.lazily import lazily

if TYPE_CHECKING:
    from placeto.capture.trace import capture_inference, capture_training
    from placeto.errors import ClusterError, GraphError, PlacementError
    from placeto.formats.placement import PlacementFile, load_placement, save_placement
    from placeto.placers import Placer, load_placer
    from placeto.placing import place
    from placeto.planning.model_plans import plan
    from placeto.problem.cluster import Cluster, Device, load_cluster, save_cluster
    from placeto.problem.graph import ComputationGraph, load_graph, save_graph
    from placeto.problem.problem import PlacementProblem
    from placeto.simulator.evaluator import PlacementResult
    from placeto.simulator.schedule import Schedule, simulate

_NAMES = {
    "capture.trace": ("capture_inference", "capture_training"),
    "formats.placement": ("PlacementFile", "load_placement", "save_placement"),
    "placers": ("Placer", "load_placer"),
    "placing": ("place",),
    "planning.model_plans": ("plan",),
    "problem.cluster": ("Cluster", "ClusterError", "Device", "load_cluster", "save_cluster"),
    "problem.graph": ("ComputationGraph", "GraphError", "load_graph", "save_graph"),
    "problem.problem": ("PlacementProblem",),
    "simulator.evaluator": ("PlacementResult",),
    "simulator.schedule": ("PlacementError", "Schedule", "simulate"),
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
    "plan",
    "PlacementResult",
    "Placer",
    "load_placer",
    "PlacementError",
    "PlacementFile",
    "load_placement",
    "save_placement",
]


__getattr__, __dir__ = lazily(globals(), _NAMES)
