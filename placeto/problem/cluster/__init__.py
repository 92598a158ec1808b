"""The cluster: devices, the links between them, and the parts of it that belong together.

Input: files, presets and topologies. Output: a checked `Cluster`. Nothing here depends on graphs.
"""

from placeto.errors import ClusterError
from placeto.problem.cluster.by_kinds import of_kinds
from placeto.problem.cluster.cluster import (
    BYTES_PER_US,
    DISPATCHES,
    LINKS,
    STATIC_ORDERS,
    Cluster,
    Device,
    SharedLink,
    crossings,
)
from placeto.problem.cluster.cluster_files import load_cluster, save_cluster
from placeto.problem.cluster.presets import CLUSTERS
from placeto.problem.cluster.topology import MOST_DEVICES, Link, Topology

__all__ = [
    "BYTES_PER_US",
    "CLUSTERS",
    "DISPATCHES",
    "LINKS",
    "MOST_DEVICES",
    "STATIC_ORDERS",
    "Cluster",
    "ClusterError",
    "Device",
    "Link",
    "SharedLink",
    "Topology",
    "crossings",
    "load_cluster",
    "of_kinds",
    "save_cluster",
]
