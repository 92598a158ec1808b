"""Groups of ops as flat arrays, which kernels read.

Legend: N ops, G groups, E edges.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from placeto.problem.graph import ComputationGraph
from placeto.problem.grouping.grouping import Groups


class GroupArrays(NamedTuple):
    """The ops of each group, and the inputs of each op, as int64 arrays."""

    group: np.ndarray  # (N,) group of each op
    op_ptr: np.ndarray  # (G+1,) offsets of each group's ops
    ops: np.ndarray  # (N,) ops by group, in topological order within each group
    in_ptr: np.ndarray  # (N+1,) offsets of each op's inputs
    in_src: np.ndarray  # (E,) op that makes each input
    in_tensor: np.ndarray  # (E,) tensor of each input


def group_arrays(graph: ComputationGraph, groups: Groups) -> GroupArrays:
    """Return the arrays of a graph and its groups."""
    ops = np.lexsort((graph.position, groups.group))
    return GroupArrays(
        group=groups.group,
        op_ptr=np.searchsorted(groups.group[ops], np.arange(groups.num_groups + 1)),
        ops=ops,
        in_ptr=graph.input_ptr,
        in_src=graph.edge_src.astype(np.int64),
        in_tensor=graph.edge_tensor.astype(np.int64),
    )
