"""A graph's memory fields: which tensors are resident or held, which parameters are trained, and their state.

All are optional. Graphs without them, and their hashes, are the same as before these fields existed.

Legend: N ops, T tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from placeto.errors import GraphError
from placeto.problem.checks import INT64_MAX, check_array
from placeto.problem.graph.arrays import GraphArrays

FIELDS = ("trained_bytes", "resident_outputs", "state_bytes")
NOT_HELD = -1
"""Entry of `held_until` for a tensor that is released after its last use."""
OPTIMIZERS = {"sgd": 0, "momentum": 1, "adagrad": 1, "rmsprop": 1, "lion": 1, "adam": 2, "adamw": 2}
"""Optimizer -> number of tensors that it keeps for each parameter, in the parameter's dtype, as in PyTorch."""
DEFAULT_OPTIMIZER = "adam"


def usual(mode: str, op_types: Sequence[str], param_bytes: np.ndarray, output_ptr: np.ndarray) -> dict[str, np.ndarray]:
    """Return the values of a graph's memory fields if they aren't given.

    ``trained_bytes`` (N,) int64: all parameters in training, none in inference. ``resident_outputs`` (T,) bool: the
    outputs of ops of type "parameter", which are the parameter itself. ``state_bytes`` (N,) int64: gradients and
    Adam's two moments. ``held_until`` (T,) int64: `NOT_HELD`.
    """
    parameter = np.array([kind == "parameter" for kind in op_types], bool) & (param_bytes > 0)
    trained = param_bytes * (mode == "training")
    resident = np.repeat(parameter, np.diff(output_ptr))
    held = np.full(len(resident), NOT_HELD)
    state = state_bytes(trained)
    return {"trained_bytes": trained, "resident_outputs": resident, "state_bytes": state, "held_until": held}


def state_bytes(trained_bytes: np.ndarray, optimizer: str = DEFAULT_OPTIMIZER) -> np.ndarray:
    """(N,) int64, bytes of gradients and optimizer state for parameters of `trained_bytes` (N,); never over int64."""
    tensors = 1 + OPTIMIZERS[optimizer]
    return np.minimum(trained_bytes, INT64_MAX // tensors) * tensors


def unusual(graph: GraphArrays) -> dict[str, np.ndarray]:
    """Return those of `FIELDS` that differ from their defaults: the hash of a graph includes only these."""
    default = _usual(graph)
    return {key: getattr(graph, key) for key in FIELDS if (getattr(graph, key) != default[key]).any()}


def _usual(graph: GraphArrays) -> dict[str, np.ndarray]:
    """Return what is `usual` of a graph. If it says which parameters are trained, `state_bytes` is for these."""
    default = usual(graph.mode, graph.op_types, graph.param_bytes, graph.output_ptr)
    return default if graph.trained_bytes is None else default | {"state_bytes": state_bytes(graph.trained_bytes)}


def records(graph: GraphArrays) -> list[dict[str, Any]]:
    """Return the memory fields of each op record; fields that have their default are left out."""
    default = _usual(graph)
    fields: list[dict[str, Any]] = [{} for _ in range(graph.num_ops)]
    for key in ("trained_bytes", "state_bytes"):
        for op in np.flatnonzero(getattr(graph, key) != default[key]).tolist():
            fields[op][key] = int(getattr(graph, key)[op])
    for tensor in np.flatnonzero(graph.resident_outputs != default["resident_outputs"]).tolist():
        op = int(graph.producer[tensor])
        own = slice(graph.output_ptr[op], graph.output_ptr[op + 1])
        fields[op]["resident_outputs"] = np.flatnonzero(graph.resident_outputs[own]).tolist()
    for tensor in np.flatnonzero(graph.held_until != NOT_HELD).tolist():
        op = int(graph.producer[tensor])
        last = graph.op_names[graph.held_until[tensor]]
        fields[op].setdefault("held", []).append([last, tensor - int(graph.output_ptr[op])])
    return fields


def complete(graph: GraphArrays) -> None:
    """Set the memory fields of a new graph that are None to their defaults, and check all of them.

    Raises:
        GraphError: a field has a wrong length, dtype or range, an op has more trained bytes than parameter bytes, or it
            has state but no trained parameter.
    """
    default = _usual(graph)
    for key, array in default.items():
        if getattr(graph, key) is None:
            object.__setattr__(graph, key, array)
    trained, state = graph.trained_bytes, graph.state_bytes
    for key, array in default.items():
        length = graph.num_ops if key in ("trained_bytes", "state_bytes") else len(graph.output_bytes)
        check_array(getattr(graph, key), key, array.dtype.type, length, GraphError)
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
