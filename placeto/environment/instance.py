"""A placement problem with its ops in groups, as flat arrays: what an observation is made from.

Legend: C instances, N ops, E edges, G groups, A tensor arcs (a tensor and a group that reads it), P pair arcs (ordered
pairs of groups that exchange tensors).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from placeto.problem.grouping import Groups, group_ops
from placeto.problem.grouping.group_arrays import group_arrays
from placeto.problem.problem import PlacementProblem


class FlatInstance(NamedTuple):
    """The arrays of an instance, int64 unless they say float64."""

    group: np.ndarray  # (N,); this and the next five are fields of `GroupArrays`
    op_ptr: np.ndarray  # (G+1,)
    ops: np.ndarray  # (N,)
    in_ptr: np.ndarray  # (N+1,)
    in_src: np.ndarray  # (E,)
    in_tensor: np.ndarray  # (E,)
    in_arc: np.ndarray  # (E,) tensor arc of each input, -1 within a group
    arc_src: np.ndarray  # (A,) producing op
    arc_dst: np.ndarray  # (A,) reading group
    arc_tensor: np.ndarray  # (A,) tensor
    arc_pair: np.ndarray  # (A,) pair arc that has the tensor arc
    resident: np.ndarray  # (G,) float64, bytes of parameters, gradients and optimizer state
    single_us: np.ndarray  # (1,) float64, best single-device makespan
    lower_bound_us: np.ndarray  # (1,) float64, lower bound of the makespan


@dataclass(frozen=True, eq=False)
class Instance:
    """A problem whose ops are in groups. Make one with `make_instance`."""

    problem: PlacementProblem
    groups: Groups
    arrays: FlatInstance
    pairs: np.ndarray  # (2, P) int64, pair arcs: from which group to which
    traversal: np.ndarray  # (G,) int64, position of each group in topological order

    @cached_property
    def reach(self) -> np.ndarray:
        """(G, G) bool, entry [i, j]: whether a path of arcs that go forward in the traversal leads from i to j."""
        source, target = self.pairs[:, self.traversal[self.pairs[0]] < self.traversal[self.pairs[1]]]
        reach = np.zeros((len(self.traversal), len(self.traversal)), bool)
        reach[source, target] = True
        for group in np.argsort(self.traversal)[::-1]:
            reach[group] |= reach[reach[group]].any(0)
        return reach


def make_instance(problem: PlacementProblem, groups: Groups | None = None) -> Instance:
    """Make the instance of a problem and its groups (those of `group_ops` if not given)."""
    groups = group_ops(problem) if groups is None else groups
    graph, group, num_groups = problem.graph, groups.group, groups.num_groups
    arrays = group_arrays(graph, groups)

    # tensor arcs: one for each tensor and each other group that reads it
    crossing = group[graph.edge_src] != group[graph.edge_dst]
    key = np.stack([graph.edge_tensor[crossing], group[graph.edge_dst[crossing]]])
    arcs, inverse = np.unique(key, axis=1, return_inverse=True)
    in_arc = np.full(graph.num_edges, -1, np.int64)
    in_arc[crossing] = inverse.ravel()
    producer = np.searchsorted(graph.output_ptr, arcs[0], side="right") - 1
    pairs, arc_pair = np.unique(np.stack([group[producer], arcs[1]]), axis=1, return_inverse=True)

    traversal = np.empty(num_groups, np.int64)
    traversal[np.argsort(graph.position[arrays.ops[arrays.op_ptr[:-1]]], kind="stable")] = np.arange(num_groups)
    flat = FlatInstance(
        *arrays,
        in_arc=in_arc,
        arc_src=producer.astype(np.int64),
        arc_dst=arcs[1].astype(np.int64),
        arc_tensor=arcs[0].astype(np.int64),
        arc_pair=arc_pair.ravel().astype(np.int64),
        resident=np.bincount(group, weights=problem.resident_bytes.astype(np.float64), minlength=num_groups),
        single_us=np.array([problem.single_device_us]),
        lower_bound_us=np.array([problem.lower_bound_us]),
    )
    return Instance(problem, groups, flat, pairs.astype(np.int64), traversal)


Measure = Callable[[int, np.ndarray], float]
"""Runs a step of an instance, given by its number, with a placement (N,) of its ops; returns its microseconds."""


@dataclass(frozen=True, eq=False)
class InstanceBatch:
    """C instances. Their graphs, groups and clusters may all differ."""

    instances: tuple[Instance, ...]  # (C,)
    single_us: np.ndarray  # (C,) float64, best single-device makespans, in microseconds
    num_groups: np.ndarray  # (C,) int64
    num_devices: np.ndarray  # (C,) int64
    num_pairs: np.ndarray  # (C,) int64, pair arcs of each instance
    measure: Measure | None = None  # if given, makespans of episodes are measured, not simulated

    @classmethod
    def of(cls, instances: Sequence[Instance], measure: Measure | None = None) -> InstanceBatch:
        """Make a batch of instances."""
        return cls(
            instances=tuple(instances),
            single_us=np.array([i.problem.single_device_us for i in instances]),
            num_groups=np.array([i.groups.num_groups for i in instances], np.int64),
            num_devices=np.array([i.problem.num_devices for i in instances], np.int64),
            num_pairs=np.array([i.pairs.shape[1] for i in instances], np.int64),
            measure=measure,
        )

    @property
    def max_groups(self) -> int:
        """G, the groups of the largest instance."""
        return int(self.num_groups.max())
