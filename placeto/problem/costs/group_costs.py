"""Op times on tensor-parallel groups: those of one board, and those of the group's collectives.

Legend: N ops, D devices, each of them a group of t ranks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from placeto.problem.cluster import Cluster
from placeto.problem.cluster.groups import Ring, grouped, rings
from placeto.problem.costs.collectives import collective_us
from placeto.problem.costs.cost_model import CostModel
from placeto.problem.graph import ComputationGraph

_NAMESPACE = "_c10d_functional."
_KINDS = {
    "all_reduce": "all_reduce",
    "all_gather_into_tensor": "all_gather",
    "reduce_scatter_tensor": "reduce_scatter",
    "all_to_all_single": "all_to_all",
}
"""Torch's name of a collective -> its kind."""
_ONE_SIDE = "all_gather", "reduce_scatter"
"""Kinds that read or write a part of the tensor; the others read and write all of it."""


@dataclass(frozen=True, eq=False)
class GroupCosts:
    """A cost model for devices that are groups of boards."""

    costs: CostModel  # of one board
    boards: Cluster
    ranks: int  # t

    @cached_property
    def rings(self) -> Mapping[str, Ring]:
        """Kind of boards -> the link between two ranks."""
        return rings(self.boards, self.ranks)

    @property
    def name(self) -> str:
        """The name of the boards' costs, and the groups' links."""
        links = ", ".join(f"{kind} {ring.bandwidth:g} {ring.latency_us:g}" for kind, ring in self.rings.items())
        return f"{self.costs.name} in groups of {self.ranks} ({links})"

    def unmeasured(self, cluster: Cluster) -> tuple[str, ...]:
        """Kinds of devices whose times are assumed."""
        found: tuple[str, ...] = getattr(self.costs, "unmeasured", lambda cluster: ())(cluster)
        return found

    def op_time_us(self, graph: ComputationGraph, cluster: Cluster) -> np.ndarray:
        """(N, D) float64, microseconds."""
        time_us = self.costs.op_time_us(graph, cluster)
        known = dict[tuple[str, str, float], float]()
        for op, op_type in enumerate(graph.op_types):
            kind = _KINDS.get(op_type.removeprefix(_NAMESPACE)) if op_type.startswith(_NAMESPACE) else None
            for column, device in enumerate(cluster.devices) if kind else ():
                key = str(kind), device.kind, float(graph.bytes_accessed[op])
                if key not in known:
                    known[key] = self._collective_us(*key)
                time_us[op, column] = known[key]
        return time_us

    def _collective_us(self, kind: str, board: str, accessed: float) -> float:
        whole = accessed / (1 + 1 / self.ranks if kind in _ONE_SIDE else 2)
        return collective_us(kind, round(whole), self.ranks, *self.rings[board])


def in_groups(cluster: Cluster, costs: CostModel, width: int) -> tuple[Cluster, CostModel]:
    """Return the cluster and the cost model of groups of `width` boards; both as they are if it is 1.

    Raises:
        ClusterError: the cluster can't be divided into such groups.
    """
    if width == 1:
        return cluster, costs
    return grouped(cluster, width), GroupCosts(costs, cluster, width)
