"""What GPUs do in place of the ops of attention with dropout, which a CPU writes out: one kernel in each direction.

The kernel computes a tile of the scores at a time, and writes none of them to memory. In the backward pass it computes
them again (Dao, "FlashAttention-2", 2023, arXiv 2307.08691).

Legend: N ops, E edges, T tensors.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from placeto.problem.graph.graph import ComputationGraph
from placeto.problem.graph.label_values import ATTENTION

_BACKWARD = 5 / 4  # products that the kernel computes in the backward pass, over those that are written out


class Work(NamedTuple):
    """The work of all ops on GPUs."""

    flops: np.ndarray  # (N,) float64
    bytes_accessed: np.ndarray  # (N,) float64


def inside(graph: ComputationGraph) -> tuple[np.ndarray, np.ndarray]:
    """Which tensors GPUs don't make, as no ops but those of an attention read them, and what is in their place.

    Returns:
        (T,) bool; and (T,) int64, the tensor that a copy of queries, keys or values was made of, and other tensors
        themselves.
    """
    part = _is_part(graph)
    made_by, read = graph.producer, graph.edge_tensor
    hidden = part[made_by] & ~graph.resident_outputs
    hidden[read[~part[graph.edge_dst]]] = False
    source = np.arange(len(made_by))
    copies = hidden & (graph.flops == 0)[made_by] & (np.diff(graph.input_ptr) > 0)[made_by]
    source[copies] = read[graph.input_ptr[made_by[copies]]]
    while (source[source] != source).any():
        source = source[source]
    return hidden, source


def saved(graph: ComputationGraph) -> np.ndarray:
    """(E,) int64, the tensor that autograd keeps for the reader of each edge; -1 = none: it is inside of a kernel."""
    hidden, source = inside(graph)
    kept = source[graph.edge_tensor]
    return np.where(hidden[kept], -1, kept)


def work_on_gpus(graph: ComputationGraph) -> Work:
    """The FLOPs and bytes of all ops; those of an attention are with its last product in each pass."""
    flops, accessed = graph.flops.copy(), graph.bytes_accessed.copy()
    part = _is_part(graph)
    if not part.any():
        return Work(flops, accessed)
    from scipy.sparse import coo_array  # here, since it takes long to load, and reading a graph needs none
    from scipy.sparse.csgraph import connected_components

    hidden, source = inside(graph)
    made_by, src, dst, tensor = graph.producer, graph.edge_src, graph.edge_dst, graph.edge_tensor
    late = np.array([part_of == "backward" for part_of in graph.passes], bool)
    within = part[dst] & hidden[tensor] & (late[src] == late[dst])
    links = coo_array((np.ones(within.sum()), (src[within], dst[within])), (graph.num_ops, graph.num_ops))
    kernel = connected_components(links, directed=False)[1]
    place, last = np.argsort(graph.topological_order), np.zeros(graph.num_ops, np.int64)
    parts = np.flatnonzero(part)
    in_order = parts[np.lexsort((place[parts], graph.flops[parts] > 0))]
    last[kernel[in_order]] = in_order  # of several ops of a kernel, numpy keeps the last
    at = last[kernel]  # (N,) the op that stands for the kernel of each op
    flops[part] = accessed[part] = 0.0
    np.add.at(flops, at[part], (graph.flops * np.where(late, _BACKWARD, 1.0))[part])
    reads = part[dst] & ~within & ~hidden[source[tensor]]
    read = np.unique(np.stack([at[dst[reads]], source[tensor[reads]]]), axis=1)
    np.add.at(accessed, read[0], graph.output_bytes[read[1]])
    writes = part[made_by] & ~hidden
    np.add.at(accessed, at[made_by[writes]], graph.output_bytes[writes])
    return Work(flops, accessed)


def _is_part(graph: ComputationGraph) -> np.ndarray:
    """(N,) bool, whether an op is a part of the kernel of an attention."""
    return np.array([kernel == ATTENTION for kernel in graph.kernels], bool)
