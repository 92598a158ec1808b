"""Memory of a graph's tensors and parameters: views, dropout's masks, and the state of an optimizer.

Legend: N ops, T tensors.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from placeto.problem.checks import INT64_MAX, check_choice
from placeto.problem.graph.fused_attention import inside
from placeto.problem.graph.graph import ComputationGraph
from placeto.problem.graph.label_values import DROPOUT
from placeto.problem.graph.memory_fields import OPTIMIZERS, state_bytes

_FLOAT_BYTES = {"float64": 8, "float16": 2, "bfloat16": 2}
HALVES = ("float16", "bfloat16")
"""Dtypes of 16 bits: with mixed precision, their parameters have copies in float32."""


def storage(graph: ComputationGraph, on_cpus: bool = True) -> np.ndarray:
    """(T,) int64, the tensor in whose memory each tensor is: itself, unless it is a view, or made in place.

    A view, such as a slice, is an output of a captured op of no work. It is a part of the op's first input, which lives
    at least as long.
    On GPUs alone, copies that attention makes of queries, keys and values stand for these: see `fused_attention`.
    """
    captured = np.array([kind.startswith("aten.") for kind in graph.op_types], bool)
    views = captured & (graph.flops == 0) & (graph.bytes_accessed == 0) & (np.diff(graph.input_ptr) > 0)
    made_by = graph.producer
    root = np.arange(len(made_by)) if on_cpus else inside(graph)[1]
    shown = views[made_by] & (graph.output_bytes > 0)  # an output of no bytes is a signal, and no view
    shown[graph.output_ptr[:-1][graph.in_place]] = True
    root[shown] = graph.edge_tensor[graph.input_ptr[made_by[shown]]]
    while (root[root] != root).any():  # views of views
        root = root[root]
    return root


def live_bytes(graph: ComputationGraph, on_cpus: bool) -> np.ndarray:
    """(T,) int64, bytes that each tensor takes on its producer's device while it lives: 0 if it is resident.

    A GPU computes a dropout in one kernel, and keeps a mask of one byte for each number. It computes attention in one
    kernel, too, and keeps queries, keys, values and the output. A CPU keeps the tensors of the captured ops.

    Args:
        graph: T tensors; the ops of dropouts have the kernel "dropout", those of attention "attention".
        on_cpus: whether a device of the cluster is a CPU; then the tensors of the captured ops count.
    """
    live = np.where(graph.resident_outputs, 0, graph.output_bytes)
    if on_cpus:
        return live
    hidden, source = inside(graph)
    live = np.where(hidden, np.where(hidden[source], 0, live[source]), live)
    labels = zip(graph.kernels, graph.op_types, strict=True)
    mask = np.array([kernel == DROPOUT and not kind.endswith(".mul") for kernel, kind in labels], bool)
    sizes = np.array([_FLOAT_BYTES.get(dtype, 4) for dtype in graph.dtypes], np.int64)
    return np.where(mask[graph.producer], live // sizes[graph.producer], live)


def with_optimizer(graph: ComputationGraph, optimizer: str, master_weights: bool = False) -> ComputationGraph:
    """Return the graph with the state of another optimizer for each trained parameter.

    Args:
        graph: a parameter's dtype is that of its op.
        optimizer: one of `OPTIMIZERS`; its state has the parameter's dtype, as in PyTorch.
        master_weights: parameters of 16 bits also have a copy in float32, and their optimizer's state is in float32, as
            in mixed-precision training: with Adam, 2 bytes of weight, 2 of gradient, 4 of the copy and 8 of state.

    Raises:
        ValueError: there is no such optimizer.
    """
    check_choice(optimizer, OPTIMIZERS, "optimizer", ValueError)
    state = state_bytes(graph.trained_bytes, optimizer)
    if master_weights:
        beside = 1 + 2 * (1 + OPTIMIZERS[optimizer])  # in sizes of the parameter
        mixed = np.minimum(graph.trained_bytes, INT64_MAX // beside) * beside
        state = np.where(np.isin(graph.dtypes, HALVES), mixed, state)
    return replace(graph, state_bytes=state)


def assumed(graph: ComputationGraph, optimizer: str, master_weights: bool = False) -> str:
    """Return a line for users: which memory of a parameter is assumed for a training step."""
    count = OPTIMIZERS[optimizer]
    trained = {dtype for dtype, size in zip(graph.dtypes, graph.trained_bytes.tolist(), strict=True) if size}
    if master_weights and trained & set(HALVES):
        each = f"2 weight + 2 gradient + 4 master weight in float32 + {4 * count} state of {optimizer} in float32"
        return f"{8 + 4 * count} bytes a parameter of 16 bits: {each}"
    states = {0: "no state"}.get(count, f"state of {optimizer} ({count} of its size)")
    without = "; no master weights in float32" if trained & set(HALVES) else ""
    return f"weight, gradient and {states} in each parameter's own dtype{without}"
