"""A hash that is equal for graphs that differ only in names, to keep test graphs out of training.

Legend: N ops, E edges.
"""

from __future__ import annotations

import hashlib
from itertools import pairwise

import numpy as np

from placeto.problem.graph.arrays import GraphArrays

_LABELS = ("op_types", "flops", "bytes_accessed", "param_bytes", "trained_bytes", "state_bytes", "dtypes", "kernels",
           "passes", "micro_batches")  # fmt: skip


def likeness(graph: GraphArrays) -> str:
    """Hash of a graph's content without its names, 64 hex digits. The order in which ops are listed doesn't matter.

    The names of ops and modules, colocation, and how long tensors are held are left out. Each op has two hashes, one
    with all ops before it and one with all ops after it. The hash of the graph is made from the sorted hashes of its
    ops.

    >>> from placeto.problem.graph import ComputationGraph
    >>> one, other = (ComputationGraph.from_ops("g", [{"name": a, "type": "mm", "flops": 1.0, "outputs": [8]},
    ...     {"name": b, "type": "add", "flops": 2.0, "inputs": [[a, 0]]}]) for a, b in ("xy", "uv"))
    >>> one.hash == other.hash, likeness(one) == likeness(other)
    (False, True)
    """
    op_digests, order = _own(graph), graph.topological_order.tolist()
    into: list[list[tuple[int, int]]] = [[] for _ in range(graph.num_ops)]
    out: list[list[tuple[int, int]]] = [[] for _ in range(graph.num_ops)]
    for src, dst, output in zip(
        *(a.tolist() for a in (graph.edge_src, graph.edge_dst, graph.edge_output)), strict=True
    ):
        into[dst].append((src, output))
        out[src].append((dst, output))
    before, after = _along(order, op_digests, into), _along(order[::-1], op_digests, out)
    together = sorted(b + a for b, a in zip(before, after, strict=True))
    return hashlib.sha256(graph.mode.encode() + b"".join(together)).hexdigest()


def _own(graph: GraphArrays) -> list[bytes]:
    """(N,) hashes of each op's own fields, without its edges."""
    columns = [np.asarray(getattr(graph, label)).tolist() for label in _LABELS]
    columns += [graph.time_us[kind].tolist() for kind in sorted(graph.time_us)]
    ptr, size, resident = graph.output_ptr.tolist(), graph.output_bytes.tolist(), graph.resident_outputs.tolist()
    outputs = [(size[start:end], resident[start:end]) for start, end in pairwise(ptr)]
    kinds = sorted(graph.time_us)
    return [_digest(repr((kinds, *op)).encode()) for op in zip(*columns, outputs, strict=True)]


def _along(order: list[int], op_digests: list[bytes], others: list[list[tuple[int, int]]]) -> list[bytes]:
    """(N,) hashes of each op together with all ops that it reaches over the edges `others`, found in `order`.

    `others[op]` has (other op, number of the output that the edge carries); the other op comes earlier in `order`.
    """
    digests = list(op_digests)
    for op in order:
        read = sorted(digests[other] + output.to_bytes(8) for other, output in others[op])
        digests[op] = _digest(op_digests[op] + b"".join(read))
    return digests


def _digest(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=16).digest()
