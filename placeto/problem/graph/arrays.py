"""The arrays of a computation graph, and other arrays that follow from them alone.

Legend: N ops, T tensors (op outputs), E edges.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise

import numpy as np


@dataclass(frozen=True, eq=False)
class GraphArrays:
    """The fields of a `ComputationGraph`, which checks them, and properties that follow from them alone."""

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
    # (N,) int64, the part of param_bytes that has gradients and optimizer state; None = all in training, 0 in inference
    trained_bytes: np.ndarray = None  # type: ignore[assignment]
    # (T,) bool, whether the tensor is resident memory, such as a parameter; None = only outputs of parameters are
    resident_outputs: np.ndarray = None  # type: ignore[assignment]
    # (T,) int64, the op until whose end each tensor lives, if both are on one device; NOT_HELD = until its last use;
    # None = all NOT_HELD; no part of the hash, so that placements of graphs captured before it existed stay valid
    held_until: np.ndarray = None  # type: ignore[assignment]
    # (N,) bool, whether an op's first output is in the memory of its first input; None = none is; no part of the hash
    in_place: np.ndarray = None  # type: ignore[assignment]
    dtypes: tuple[str, ...] = None  # type: ignore[assignment]  # (N,) dtype of each op; None = float32
    kernels: tuple[str, ...] = None  # type: ignore[assignment]  # (N,) each one of KERNELS; None = all ""
    # (N,) keys of measured times, "" where unknown; no part of the hash, as only cost models depend on them
    signatures: tuple[str, ...] = None  # type: ignore[assignment]
    # (N,) int64, bytes of gradients and the optimizer's state; None = gradient and two moments, 3 x trained_bytes
    state_bytes: np.ndarray = None  # type: ignore[assignment]
    passes: tuple[str, ...] = None  # type: ignore[assignment]  # (N,) each one of PASSES; None = unknown
    # (N,) int64, number of each op's micro-batch, -1 for ops that belong to all micro-batches; None = all -1
    micro_batches: np.ndarray = None  # type: ignore[assignment]

    # (N,) for ops of types in TENSORS their tensor's other names, for other ops names of buffers that they read; one of
    # these other ops also has the names of tensors that no op reads; no part of the hash
    module_tensors: tuple[tuple[str, ...], ...] = None  # type: ignore[assignment]
    # (N,) names of the module's inputs that each op of the forward pass reads; no part of the hash
    module_inputs: tuple[tuple[str, ...], ...] = None  # type: ignore[assignment]
    # (N,) paths of the modules that call the module of each op of the forward pass, directly or not, but don't contain
    # it; no part of the hash
    called_in: tuple[tuple[str, ...], ...] = None  # type: ignore[assignment]
    # (N,) paths of the modules that contain the module of each op of the forward pass and can't be called again for the
    # backward pass: nobody calls them, as nn.ModuleList, or they would compute something else; no part of the hash
    unrepeatable: tuple[tuple[str, ...], ...] = None  # type: ignore[assignment]
    # (N,) paths of the modules, "" for the model itself, whose tensors the module of the op changes in place, or reads
    # without getting them as arguments; one op of such a module has them; no part of the hash
    shared_with: tuple[tuple[str, ...], ...] = None  # type: ignore[assignment]
    # (N,) what makes gradients of its own in the forward pass, with its module; one op has all; no part of the hash
    own_gradients: tuple[tuple[str, ...], ...] = None  # type: ignore[assignment]
    # (N,) bool, whether an output of an op has complex numbers; None = none has; no part of the hash
    complex: np.ndarray = None  # type: ignore[assignment]
    # (N,) for the ops that add up the gradient of a parameter over micro-batches, and for the op of type "gradient" at
    # their end, the name of the parameter, "" for all others; no part of the hash, as it follows from the edges
    gradient_of: tuple[str, ...] = None  # type: ignore[assignment]

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
        """(N,) for each op the list of ops whose outputs it reads, once for each edge."""
        sources, ptr = self.edge_src.tolist(), self.input_ptr.tolist()
        return [sources[first:last] for first, last in pairwise(ptr)]

    @cached_property
    def readers(self) -> list[list[int]]:
        """(N,) for each op the list of ops that read its outputs, once for each edge."""
        readers_of: list[list[int]] = [[] for _ in self.op_names]
        for op, sources in enumerate(self.reads):
            for source in sources:
                readers_of[source].append(op)
        return readers_of

    @cached_property
    def topological_order(self) -> np.ndarray:
        """(N,) int64, op indices, every producer before its consumers; the least ready index comes next.

        If the arrays have a cycle, the ops on it and after it are missing.
        """
        if (self.edge_src < self.edge_dst).all():  # mostly: ops of a step stand in the order of the program
            made = np.arange(self.num_ops)
        else:
            from placeto.problem.order_kernels import sorted_ops  # here, since it loads numba

            made = sorted_ops(self.num_ops, self.edge_src, self.edge_dst)
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
        """(N,) int64, rank of each op name in string order, by which the simulator breaks ties."""
        return np.argsort(sorted(range(self.num_ops), key=self.op_names.__getitem__))
