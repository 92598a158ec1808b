"""A graph's memory fields: what of its tensors is resident anyway or held, which parameters are trained, and what by.

All are optional: files and arrays without them mean what they always did, and so does their hash.

Legend: N ops, T tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from placeto.problem.fields import INT64_MAX
from placeto.problem.graph.arrays import GraphArrays, GraphError

FIELDS = ("trained_bytes", "resident_outputs", "state_bytes")
NOT_HELD = -1
"""Of a tensor that is released after its last use."""
OPTIMIZERS = {"sgd": 0, "momentum": 1, "adagrad": 1, "rmsprop": 1, "lion": 1, "adam": 2, "adamw": 2}
"""Optimizer -> tensors that it keeps for each parameter, of the parameter's dtype, as PyTorch's do."""
DEFAULT_OPTIMIZER = "adam"


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


def unusual(graph: GraphArrays) -> dict[str, np.ndarray]:
    """The fields of the hash that aren't the default."""
    default = of(graph)
    return {key: getattr(graph, key) for key in FIELDS if (getattr(graph, key) != default[key]).any()}


def of(graph: GraphArrays) -> dict[str, np.ndarray]:
    """The `defaults` of a graph; of the optimizer's state for the parameters that it says are trained."""
    default = defaults(graph.mode, graph.op_types, graph.param_bytes, graph.output_ptr)
    return default if graph.trained_bytes is None else default | {"state_bytes": state_bytes(graph.trained_bytes)}


def records(graph: GraphArrays) -> list[dict[str, Any]]:
    """What each op record says of memory: nothing where it's the default."""
    default = of(graph)
    found: list[dict[str, Any]] = [{} for _ in range(graph.num_ops)]
    for key in ("trained_bytes", "state_bytes"):
        for op in np.flatnonzero(getattr(graph, key) != default[key]).tolist():
            found[op][key] = int(getattr(graph, key)[op])
    for tensor in np.flatnonzero(graph.resident_outputs != default["resident_outputs"]).tolist():
        op = int(graph.producer[tensor])
        own = slice(graph.output_ptr[op], graph.output_ptr[op + 1])
        found[op]["resident_outputs"] = np.flatnonzero(graph.resident_outputs[own]).tolist()
    for tensor in np.flatnonzero(graph.held_until != NOT_HELD).tolist():
        op = int(graph.producer[tensor])
        last = graph.op_names[graph.held_until[tensor]]
        found[op].setdefault("held", []).append([last, tensor - int(graph.output_ptr[op])])
    return found


def complete(graph: GraphArrays) -> None:
    """Fill in what a graph in the making lacks; refuse what doesn't fit it.

    Raises:
        GraphError: fields of wrong lengths or kinds, or more trained bytes than there are parameters; it names the op.
    """
    default = of(graph)
    for key, array in default.items():
        if getattr(graph, key) is None:
            object.__setattr__(graph, key, array)
    trained, resident, state = graph.trained_bytes, graph.resident_outputs, graph.state_bytes
    for key, array in (("trained_bytes", trained), ("state_bytes", state)):
        if array.shape != graph.param_bytes.shape or array.dtype != np.int64:
            raise GraphError(f"{key} must be {graph.num_ops} integers of 64 bits, one for each op")
    if resident.shape != graph.output_bytes.shape or resident.dtype != bool:
        raise GraphError(f"resident_outputs must be {len(graph.output_bytes)} bools, one for each output")
    held = graph.held_until
    if held.shape != graph.output_bytes.shape or held.dtype != np.int64:
        raise GraphError(f"held_until must be {len(graph.output_bytes)} integers of 64 bits, one for each output")
    if ((held < NOT_HELD) | (held >= graph.num_ops)).any():
        raise GraphError(f"held_until must be ops, from 0 to {graph.num_ops - 1}, or {NOT_HELD}")
    bad = (trained < 0) | (trained > default["trained_bytes"])
    if bad.any():
        op = int(bad.argmax())
        most = f"0 to param_bytes = {graph.param_bytes[op]}" if graph.mode == "training" else "0 in inference"
        raise GraphError(f"op {graph.op_names[op]!r}: trained_bytes must be {most}, not {trained[op]}")
    bad = (state < 0) | (state > 0) & (trained == 0)
    if bad.any():
        op = int(bad.argmax())
        rule = "at least 0" if trained[op] else "0, as the op has no parameter that is trained"
        raise GraphError(f"op {graph.op_names[op]!r}: state_bytes must be {rule}, not {state[op]}")
