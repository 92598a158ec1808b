"""The arrays that a computation graph is made of, and what follows from them alone.

Legend: N ops, T tensors (op outputs), E edges.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise

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
    def producer(self) -> np.ndarray:
        """(T,) int64, the op that makes each tensor."""
        return np.repeat(np.arange(self.num_ops), np.diff(self.output_ptr))

    @cached_property
    def input_ptr(self) -> np.ndarray:
        """(N+1,) int64, offsets of each op's inputs among the edges."""
        return np.searchsorted(self.edge_dst, np.arange(self.num_ops + 1))

    @cached_property
    def reads(self) -> list[list[int]]:
        """(N,) lists of the ops whose outputs each op reads, once for each edge."""
        sources, ptr = self.edge_src.tolist(), self.input_ptr.tolist()
        return [sources[first:last] for first, last in pairwise(ptr)]

    @cached_property
    def readers(self) -> list[list[int]]:
        """(N,) lists of the ops that read an op's outputs, once for each edge."""
        found: list[list[int]] = [[] for _ in self.op_names]
        for op, sources in enumerate(self.reads):
            for source in sources:
                found[source].append(op)
        return found

    @cached_property
    def topological_order(self) -> np.ndarray:
        """(N,) int64, op indices, every producer before its consumers; ties by op order; shorter if on a cycle."""
        missing = np.diff(self.input_ptr).tolist()
        ready = [op for op in range(self.num_ops) if missing[op] == 0]
        order = []
        while ready:
            order.append(heapq.heappop(ready))
            for reader in self.readers[order[-1]]:
                missing[reader] -= 1
                if missing[reader] == 0:
                    heapq.heappush(ready, reader)
        made = np.array(order, np.int64)
        made.setflags(write=False)
        return made

    @cached_property
    def position(self) -> np.ndarray:
        """(N,) int64, the place of each op in the topological order."""
        return np.argsort(self.topological_order)

    @cached_property
    def index(self) -> dict[str, int]:
        """Op index of each op name."""
        return {name: i for i, name in enumerate(self.op_names)}

    @cached_property
    def name_rank(self) -> np.ndarray:
        """(N,) int64, rank of each op name in string order: the simulator's tie-break."""
        return np.argsort(sorted(range(self.num_ops), key=self.op_names.__getitem__))
