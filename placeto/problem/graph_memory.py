"""A graph's memory fields: what of its tensors is resident anyway, and which parameters are trained.

Both are optional: files and arrays without them mean what they always did, and so does their hash.

Legend: N ops, T tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from placeto.problem.graph import ComputationGraph

FIELDS = ("trained_bytes", "resident_outputs")


def defaults(
    mode: str, op_types: Sequence[str], param_bytes: np.ndarray, output_ptr: np.ndarray
) -> dict[str, np.ndarray]:
    """What the fields of a graph are where they aren't given.

    ``trained_bytes`` (N,) int64: all parameters in training, none in inference. ``resident_outputs`` (T,) bool: what
    an op of type "parameter" gives is the parameter.
    """
    parameter = np.array([kind == "parameter" for kind in op_types], bool) & (param_bytes > 0)
    return {
        "trained_bytes": param_bytes * (mode == "training"),
        "resident_outputs": np.repeat(parameter, np.diff(output_ptr)),
    }


def overwrite(
    arrays: dict[str, np.ndarray],
    output_ptr: np.ndarray,
    trained: Sequence[int | None],
    resident: Sequence[Sequence[int] | None],
) -> dict[str, np.ndarray]:
    """The `defaults`, overwritten by what op records give: bytes and indices of outputs, None where they don't."""
    for op, (size, outputs) in enumerate(zip(trained, resident, strict=True)):
        if size is not None:
            arrays["trained_bytes"][op] = size
        if outputs is not None:
            own = slice(output_ptr[op], output_ptr[op + 1])
            arrays["resident_outputs"][own] = np.isin(np.arange(own.stop - own.start), outputs)
    return arrays


def unusual(graph: ComputationGraph) -> dict[str, np.ndarray]:
    """The fields that aren't the default."""
    return {key: getattr(graph, key) for key, default in of(graph).items() if (getattr(graph, key) != default).any()}


def of(graph: ComputationGraph) -> dict[str, np.ndarray]:
    """The `defaults` of a graph."""
    return defaults(graph.mode, graph.op_types, graph.param_bytes, graph.output_ptr)


def records(graph: ComputationGraph) -> list[dict[str, Any]]:
    """What each op record says of memory: nothing where it's the default."""
    default = of(graph)
    found: list[dict[str, Any]] = [{} for _ in range(graph.num_ops)]
    for op in np.flatnonzero(graph.trained_bytes != default["trained_bytes"]).tolist():
        found[op]["trained_bytes"] = int(graph.trained_bytes[op])
    for tensor in np.flatnonzero(graph.resident_outputs != default["resident_outputs"]).tolist():
        op = int(np.searchsorted(graph.output_ptr, tensor, side="right")) - 1
        own = slice(graph.output_ptr[op], graph.output_ptr[op + 1])
        found[op]["resident_outputs"] = np.flatnonzero(graph.resident_outputs[own]).tolist()
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
    trained, resident = graph.trained_bytes, graph.resident_outputs
    if trained.shape != graph.param_bytes.shape or trained.dtype != np.int64:
        raise error(f"trained_bytes must be {graph.num_ops} integers of 64 bits, one for each op")
    if resident.shape != graph.output_bytes.shape or resident.dtype != bool:
        raise error(f"resident_outputs must be {len(graph.output_bytes)} bools, one for each output")
    bad = (trained < 0) | (trained > default["trained_bytes"])
    if bad.any():
        op = int(bad.argmax())
        most = f"0 to param_bytes = {graph.param_bytes[op]}" if graph.mode == "training" else "0 in inference"
        raise error(f"op {graph.op_names[op]!r}: trained_bytes must be {most}, not {trained[op]}")
