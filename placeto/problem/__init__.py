"""What is placed, where, and at what cost.

In come files, presets, arrays and captured models; out go a `ComputationGraph` (`graph/`), a `Cluster` (`cluster/`),
and the two together with a cost model (`costs/`) as a `PlacementProblem`, whose flat arrays every kernel reads. Which
ops stay together (`grouping/`) is decided here too, and everything that reads a JSON file checks its fields here
(`fields.py`, `files.py`). Nothing in this room knows of time passing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from placeto.lazily import lazily
from placeto.problem.cluster import CLUSTERS, Cluster, ClusterError, Device, Link, Topology
from placeto.problem.graph import ComputationGraph, GraphError, load_graph, save_graph
from placeto.problem.problem import PlacementProblem, ProblemBatch

if TYPE_CHECKING:
    from placeto.problem.grouping import Groups, expand, group_ops, join_groups, split_groups

__all__ = [
    "CLUSTERS",
    "Cluster",
    "ClusterError",
    "ComputationGraph",
    "Device",
    "GraphError",
    "Groups",
    "Link",
    "PlacementProblem",
    "ProblemBatch",
    "Topology",
    "expand",
    "group_ops",
    "join_groups",
    "load_graph",
    "save_graph",
    "split_groups",
]

_GROUPING = "Groups", "expand", "group_ops", "join_groups", "split_groups"  # it loads numba
__getattr__, __dir__ = lazily(globals(), dict.fromkeys(_GROUPING, "grouping"))
