"""The arrays that a computation graph is made of, and what follows from them alone.

Legend: N ops, T tensors (op outputs), E edges.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np


class GraphError(ValueError):
    """A graph, or a graph file, that breaks a rule of the format."""


@dataclass(frozen=True, eq=False)
class GraphArrays:
    """The fields of a `ComputationGraph`, which checks them, and what follows from them alone."""

    name: str
    mode: str  # "training" | "inference"
    op_names: tuple[str, ...]  # (N,)
    op_types: tuple[str, ...]  # (N,)
    flops: np.ndarray  # (N,) float64, FLOPs
    bytes_accessed: np.ndarray  # (N,) float64, bytes read and written
    param_bytes: np.ndarray  # (N,) int64, resident bytes
    colocation: np.ndarray  # (N,) int64, group id or -1
    modules: tuple[str, ...]  # (N,) path of the nn.Module, "" where unknown
    output_ptr: np.ndarray  # (N+1,) int64, offsets of each op's outputs
    output_bytes: np.ndarray  # (T,) int64, bytes
    edge_src: np.ndarray  # (E,) int64
    edge_dst: np.ndarray  # (E,) int64, non-decreasing
    edge_output: np.ndarray  # (E,) int64, which output of src
    time_us: Mapping[str, np.ndarray] = field(default_factory=dict)  # kind -> (N,), NaN = not given
    # (N,) int64, the part of param_bytes with gradient and optimizer state; None = all in training
    trained_bytes: np.ndarray = None  # type: ignore[assignment]
    # (T,) bool, tensors that are resident memory, as a parameter itself; None = the outputs of parameters
    resident_outputs: np.ndarray = None  # type: ignore[assignment]
    # (T,) int64, the op to whose end each tensor lives, if both are on one device, or NOT_HELD: to its last use; None =
    # all NOT_HELD; no part of the hash, so that placements of a graph captured before there was this field are its own
    held_until: np.ndarray = None  # type: ignore[assignment]
    dtypes: tuple[str, ...] = None  # type: ignore[assignment]  # (N,) what each computes in; None = float32
    kernels: tuple[str, ...] = None  # type: ignore[assignment]  # (N,) one of KERNELS; None = none of special shape
    # (N,) what measured times are kept under, "" where unknown; no part of the hash, as nothing else depends on it
    signatures: tuple[str, ...] = None  # type: ignore[assignment]
    # (N,) int64, bytes of gradients and the optimizer's state; None = gradient and two moments of trained_bytes
    state_bytes: np.ndarray = None  # type: ignore[assignment]
    passes: tuple[str, ...] = None  # type: ignore[assignment]  # (N,) each one of PASSES; None = unknown
    # (N,) int64, number of the micro-batch, -1 for ops that belong to all; None = all -1
    micro_batches: np.ndarray = None  # type: ignore[assignment]

    # (N,) of TENSORS other names, of other ops buffers that they read (and unread tensors); no part of the hash
    module_tensors: tuple[tuple[str, ...], ...] = None  # type: ignore[assignment]
    # (N,) inputs of the module that an op of the forward pass reads; no part of the hash
    module_inputs: tuple[tuple[str, ...], ...] = None  # type: ignore[assignment]

    @property
    def num_ops(self) -> int:
        """N, the number of ops."""
        return len(self.op_names)

    @property
    def num_edges(self) -> int:
        """E, the number of edges."""
        return len(self.edge_src)

    @cached_property
    def edge_tensor(self) -> np.ndarray:
        """(E,) int64, index of the tensor that each edge carries."""
        return self.output_ptr[self.edge_src] + self.edge_output

    @cached_property
    def topological_order(self) -> np.ndarray:
        """(N,) int64, op indices, every producer before its consumers; ties by op order."""
        order = topological_order(self.num_ops, self.edge_src, self.edge_dst)
        order.setflags(write=False)
        return order

    @cached_property
    def index(self) -> dict[str, int]:
        """Op index of each op name."""
        return {name: i for i, name in enumerate(self.op_names)}

    @cached_property
    def name_rank(self) -> np.ndarray:
        """(N,) int64, rank of each op name in string order: the simulator's tie-break."""
        rank = np.empty(self.num_ops, np.int64)
        rank[sorted(range(self.num_ops), key=self.op_names.__getitem__)] = np.arange(self.num_ops)
        return rank


def topological_order(num_ops: int, src: np.ndarray, dst: np.ndarray) -> np.ndarray:
    """Kahn's algorithm with a heap, so that ties go by op order; shorter than N if there is a cycle.

    >>> topological_order(3, np.array([2, 0]), np.array([0, 1])).tolist()
    [2, 0, 1]
    """
    children: list[list[int]] = [[] for _ in range(num_ops)]
    missing = [0] * num_ops
    for parent, child in zip(src.tolist(), dst.tolist(), strict=True):
        children[parent].append(child)
        missing[child] += 1
    ready = [i for i in range(num_ops) if missing[i] == 0]
    order = []
    while ready:
        op = heapq.heappop(ready)
        order.append(op)
        for child in children[op]:
            missing[child] -= 1
            if missing[child] == 0:
                heapq.heappush(ready, child)
    return np.array(order, np.int64)
