"""What is placed, where, and at what cost.

Input: files, presets, arrays and captured models. Output: a `ComputationGraph` (`graph/`), a `Cluster` (`cluster/`),
and the two together with a cost model (`costs/`) as a `PlacementProblem`, whose flat arrays every kernel reads. This
package also decides which ops stay together (`grouping/`), and checks the fields of JSON files (`checks.py`,
`files.py`). Nothing here simulates: `placeto.simulator` does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from placeto.errors import ClusterError, GraphError
from placeto.plumbing.lazily import lazily
from placeto.problem.cluster import CLUSTERS, Cluster, Device, Link, Topology
from placeto.problem.graph import ComputationGraph, load_graph, save_graph
from placeto.problem.problem import PlacementProblem

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
    "Topology",
    "expand",
    "group_ops",
    "join_groups",
    "load_graph",
    "save_graph",
    "split_groups",
]

_NAMES = {"grouping": ("Groups", "expand", "group_ops", "join_groups", "split_groups")}  # it loads numba
__getattr__, __dir__ = lazily(globals(), _NAMES)
