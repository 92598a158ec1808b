"""A graph's memory fields: what of its tensors is resident anyway or held, which parameters are trained, and what by.

All are optional: files and arrays without them mean what they always did, and so does their hash.

Legend: N ops, T tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from placeto.problem.fields import INT64_MAX, choice

if TYPE_CHECKING:
    from placeto.problem.graph import ComputationGraph

FIELDS = ("trained_bytes", "resident_outputs", "state_bytes")
NOT_HELD = -1
"""Of a tensor that is released after its last use."""
OPTIMIZERS = {"sgd": 0, "momentum": 1, "adagrad": 1, "rmsprop": 1, "lion": 1, "adam": 2, "adamw": 2}
"""Optimizer -> tensors that it keeps for each parameter, of the parameter's dtype, as PyTorch's do."""
DEFAULT_OPTIMIZER = "adam"
_FLOAT_BYTES = {"float64": 8, "float16": 2, "bfloat16": 2}
HALVES = ("float16", "bfloat16")
"""Dtypes beside which mixed precision keeps weights in float32."""


def defaults(
    mode: str, op_types: Sequence[str], param_bytes: np.ndarray, output_ptr: np.ndarray
) -> dict[str, np.ndarray]:
    """What the fields of a graph are where they aren't given.

    ``trained_bytes`` (N,) int64: all parameters in training, none in inference. ``resident_outputs`` (T,) bool: what
    an op of type "parameter" gives is the parameter. ``state_bytes`` (N,) int64: gradients and Adam's two moments.
    ``held_until`` (T,) int64: `NOT_HELD`.
    """
    parameter = np.array([kind == "parameter" for kind in op_types], bool) & (param_bytes > 0)
    trained = param_bytes * (mode == "training")
    resident = np.repeat(parameter, np.diff(output_ptr))
    held = np.full(len(resident), NOT_HELD)
    state = state_bytes(trained)
    return {"trained_bytes": trained, "resident_outputs": resident, "state_bytes": state, "held_until": held}


def state_bytes(trained_bytes: np.ndarray, optimizer: str = DEFAULT_OPTIMIZER) -> np.ndarray:
    """(N,) int64, bytes of the gradients and the optimizer's state of (N,) bytes of parameters, at most int64's."""
    tensors = 1 + OPTIMIZERS[optimizer]
    return np.minimum(trained_bytes, INT64_MAX // tensors) * tensors


def storage(graph: ComputationGraph) -> np.ndarray:
    """(T,) int64, the tensor whose memory each tensor is a part of: itself, but for views such as a slice.

    A view is what a captured op of no work gives: it shows a part of the op's first input, which lives as long.
    """
    captured = np.array([kind.startswith("aten.") for kind in graph.op_types], bool)
    first = np.searchsorted(graph.edge_dst, np.arange(graph.num_ops + 1))
    views = captured & (graph.flops == 0) & (graph.bytes_accessed == 0) & (np.diff(first) > 0)
    made_by = np.repeat(np.arange(graph.num_ops), np.diff(graph.output_ptr))
    found = np.arange(len(made_by))
    shown = views[made_by] & (graph.output_bytes > 0)  # an output of no bytes is a signal
    found[shown] = graph.edge_tensor[first[made_by[shown]]]
    while (found[found] != found).any():  # views of views
        found = found[found]
    return found


def live_bytes(graph: ComputationGraph, on_cpus: bool) -> np.ndarray:
    """(T,) int64, bytes that each tensor takes on its producer's device while it lives: none if it is resident.

    A GPU computes a dropout in one kernel, and keeps a mask of a byte a number; a CPU keeps what the captured ops say.

    Args:
        graph: where ops of dropout have the kernel "dropout".
        on_cpus: whether a device of the cluster is a CPU.
    """
    live = np.where(graph.resident_outputs, 0, graph.output_bytes)
    if on_cpus:
        return live
    labels = zip(graph.kernels, graph.op_types, strict=True)
    mask = np.array([kernel == "dropout" and not kind.endswith(".mul") for kernel, kind in labels], bool)
    sizes = np.array([_FLOAT_BYTES.get(dtype, 4) for dtype in graph.dtypes], np.int64)
    of = np.repeat(np.arange(graph.num_ops), np.diff(graph.output_ptr))  # (T,) the op that makes each tensor
    return np.where(mask[of], live // sizes[of], live)


def with_optimizer(graph: ComputationGraph, optimizer: str, master_weights: bool = False) -> ComputationGraph:
    """The graph with the state of an optimizer, one of `OPTIMIZERS`, for each parameter that is trained.

    Args:
        graph: whose parameters' dtypes are those of their ops.
        optimizer: whose state is of the parameter's dtype, as PyTorch's is.
        master_weights: parameters of 16 bits have a copy in float32 beside, and the state is in float32, as training
            in mixed precision keeps them: under Adam 2 bytes of weight, 2 of gradient, 4 of the copy and 8 of state.

    Raises:
        ValueError: no such optimizer.
    """
    choice(*OPTIMIZERS)(optimizer, "optimizer", ValueError)
    state = state_bytes(graph.trained_bytes, optimizer)
    if master_weights:
        beside = 1 + 2 * (1 + OPTIMIZERS[optimizer])  # in sizes of the parameter
        mixed = np.minimum(graph.trained_bytes, INT64_MAX // beside) * beside
        state = np.where(np.isin(graph.dtypes, HALVES), mixed, state)
    return replace(graph, state_bytes=state)


def assumed(graph: ComputationGraph, optimizer: str, master_weights: bool = False) -> str:
    """What a training step's memory for a parameter is taken to be, in one line."""
    count = OPTIMIZERS[optimizer]
    trained = {dtype for dtype, size in zip(graph.dtypes, graph.trained_bytes.tolist(), strict=True) if size}
    if master_weights and trained & set(HALVES):
        each = f"2 weight + 2 gradient + 4 master weight in float32 + {4 * count} state of {optimizer} in float32"
        return f"{8 + 4 * count} bytes a parameter of 16 bits: {each}"
    states = {0: "no state"}.get(count, f"state of {optimizer} ({count} of its size)")
    without = "; no master weights in float32" if trained & set(HALVES) else ""
    return f"weight, gradient and {states} in each parameter's own dtype{without}"


def overwrite(
    arrays: dict[str, np.ndarray],
    output_ptr: np.ndarray,
    trained: Sequence[int | None],
    resident: Sequence[Sequence[int] | None],
    state: Sequence[int | None],
) -> dict[str, np.ndarray]:
    """The `defaults`, overwritten by what op records give: bytes and indices of outputs, None where they don't."""
    for op, (size, outputs) in enumerate(zip(trained, resident, strict=True)):
        if size is not None:
            arrays["trained_bytes"][op] = size
        if outputs is not None:
            own = slice(output_ptr[op], output_ptr[op + 1])
            arrays["resident_outputs"][own] = np.isin(np.arange(own.stop - own.start), outputs)
    arrays["state_bytes"] = state_bytes(arrays["trained_bytes"])
    for op, size in enumerate(state):
        if size is not None:
            arrays["state_bytes"][op] = size
    return arrays


def unusual(graph: ComputationGraph) -> dict[str, np.ndarray]:
    """The fields of the hash that aren't the default."""
    default = of(graph)
    return {key: getattr(graph, key) for key in FIELDS if (getattr(graph, key) != default[key]).any()}


def of(graph: ComputationGraph) -> dict[str, np.ndarray]:
    """The `defaults` of a graph; of the optimizer's state for the parameters that it says are trained."""
    default = defaults(graph.mode, graph.op_types, graph.param_bytes, graph.output_ptr)
    return default if graph.trained_bytes is None else default | {"state_bytes": state_bytes(graph.trained_bytes)}


def records(graph: ComputationGraph) -> list[dict[str, Any]]:
    """What each op record says of memory: nothing where it's the default."""
    default = of(graph)
    found: list[dict[str, Any]] = [{} for _ in range(graph.num_ops)]
    for key in ("trained_bytes", "state_bytes"):
        for op in np.flatnonzero(getattr(graph, key) != default[key]).tolist():
            found[op][key] = int(getattr(graph, key)[op])
    for tensor in np.flatnonzero(graph.resident_outputs != default["resident_outputs"]).tolist():
        op = int(np.searchsorted(graph.output_ptr, tensor, side="right")) - 1
        own = slice(graph.output_ptr[op], graph.output_ptr[op + 1])
        found[op]["resident_outputs"] = np.flatnonzero(graph.resident_outputs[own]).tolist()
    for tensor in np.flatnonzero(graph.held_until != NOT_HELD).tolist():
        op = int(np.searchsorted(graph.output_ptr, tensor, side="right")) - 1
        last = graph.op_names[graph.held_until[tensor]]
        found[op].setdefault("held", []).append([last, tensor - int(graph.output_ptr[op])])
    return found


def complete(graph: ComputationGraph, error: type[ValueError]) -> None:
    """Fill in what a graph in the making lacks; refuse what doesn't fit it.

    Raises:
        error: fields of wrong lengths or kinds, or more trained bytes than there are parameters; it names the op.
    """
    default = of(graph)
    for key, array in default.items():
        if getattr(graph, key) is None:
            object.__setattr__(graph, key, array)
    trained, resident, state = graph.trained_bytes, graph.resident_outputs, graph.state_bytes
    for key, array in (("trained_bytes", trained), ("state_bytes", state)):
        if array.shape != graph.param_bytes.shape or array.dtype != np.int64:
            raise error(f"{key} must be {graph.num_ops} integers of 64 bits, one for each op")
    if resident.shape != graph.output_bytes.shape or resident.dtype != bool:
        raise error(f"resident_outputs must be {len(graph.output_bytes)} bools, one for each output")
    held = graph.held_until
    if held.shape != graph.output_bytes.shape or held.dtype != np.int64:
        raise error(f"held_until must be {len(graph.output_bytes)} integers of 64 bits, one for each output")
    if ((held < NOT_HELD) | (held >= graph.num_ops)).any():
        raise error(f"held_until must be ops, from 0 to {graph.num_ops - 1}, or {NOT_HELD}")
    bad = (trained < 0) | (trained > default["trained_bytes"])
    if bad.any():
        op = int(bad.argmax())
        most = f"0 to param_bytes = {graph.param_bytes[op]}" if graph.mode == "training" else "0 in inference"
        raise error(f"op {graph.op_names[op]!r}: trained_bytes must be {most}, not {trained[op]}")
    bad = (state < 0) | (state > 0) & (trained == 0)
    if bad.any():
        op = int(bad.argmax())
        rule = "at least 0" if trained[op] else "0, as the op has no parameter that is trained"
        raise error(f"op {graph.op_names[op]!r}: state_bytes must be {rule}, not {state[op]}")
