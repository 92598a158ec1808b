"""The columns of a graph: its fields that have a value for each op, with their keys in op records.

Legend: N ops, T tensors (op outputs).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, NamedTuple

import numpy as np
from pydantic import AfterValidator

from placeto.problem.checks import Flag, Index, Number, OneOf, Size, Text
from placeto.problem.dtypes import DTYPES
from placeto.problem.graph.arrays import GraphArrays
from placeto.problem.graph.label_values import KERNELS, LABELS, NO_MICRO_BATCH, PASSES


class Column(NamedTuple):
    """A field of `GraphArrays` with a value for each op."""

    key: str  # in op records
    kind: Any  # the type of the value in a record
    meaning: str  # of the value in a record, for docs/file-formats.md
    usual: Any  # the value of ops whose records lack it
    dtype: type[np.generic] | None = None  # of the array (N,); None = a tuple

    def of(self, values: Sequence[Any]) -> Any:
        """The column with these values (N,)."""
        return tuple(values) if self.dtype is None else np.array(values, self.dtype)

    def like(self, values: Any, like: np.ndarray) -> Any:
        """The values of ops that are each like one of (N,) values, a new array or list; -1 = the usual value."""
        if self.dtype is not None:
            return np.append(values, np.array(self.usual, self.dtype))[like]
        all_values = (*values, self.usual)
        return list(map(all_values.__getitem__, like.tolist()))

    def listed(self, values: Any) -> list[Any]:
        """The values (N,) of the column of a graph."""
        return list(values) if self.dtype is None else values.tolist()


_MicroBatch = Annotated[Index | None, AfterValidator(lambda number: NO_MICRO_BATCH if number is None else number)]
_Names = tuple[Text, ...]
COLUMNS = {
    "op_types": Column("type", Text, "what it computes, such as `aten.mm`; costs, pictures and placers use it", "op"),
    "flops": Column("flops", Number, "its work in FLOPs", 0.0, np.float64),
    "bytes_accessed": Column("bytes_accessed", Number, "bytes that it reads and writes", 0.0, np.float64),
    "param_bytes": Column("param_bytes", Size, "bytes of the parameters that stay on its device", 0, np.int64),
    "modules": Column(
        "module", Text, "path of the `nn.Module` that it comes from, with at most 400 parts; grouping uses it", ""
    ),
    "micro_batches": Column(
        "micro_batch",
        _MicroBatch,
        "number of its micro-batch, from 0. Default: it belongs to all",
        NO_MICRO_BATCH,
        np.int64,
    ),
    "dtypes": Column(
        "dtype",
        Annotated[str, OneOf(DTYPES)],
        "what it computes in; `tf32` are float32 products on tensor cores",
        LABELS["dtypes"],
    ),
    "kernels": Column(
        "kernel",
        Annotated[str, OneOf(KERNELS)],
        "for a convolution: whether it takes groups of channels, or each channel by itself (depthwise), and whether "
        'channels are the innermost dimension (last). `"dropout"`: the op is a part of the one kernel that GPUs run '
        "for dropout in each direction. "
        '`"attention"`: the same for `scaled_dot_product_attention` with dropout, which CPUs write out',
        LABELS["kernels"],
    ),
    "passes": Column(
        "pass",
        Annotated[str, OneOf(PASSES)],
        "the part of the step that it belongs to. Recomputation: an activation is computed again in the backward "
        "pass. Default: unknown",
        LABELS["passes"],
    ),
    "in_place": Column(
        "in_place",
        Flag,
        "whether its first output is in the memory of the first tensor that it reads, as that of `add_` is, if both "
        "are on one device. Not part of the hash",
        False,
        np.bool_,
    ),
    "signatures": Column(
        "signature",
        Text,
        "key of the op's time in measured costs: op, shapes, strides, dtypes, arguments. Not part of the hash. "
        "Default: not looked up",
        "",
    ),
    "module_tensors": Column(
        "tensors",
        _Names,
        "for types `parameter` and `buffer`: its other names in the module. For other ops: the buffers that they read; "
        "with one of these ops also the tensors that no op reads. For exports; not part of the hash",
        (),
    ),
    "module_inputs": Column(
        "reads",
        _Names,
        "inputs of the module that an op of the forward pass reads. If it reads no more than the shape of one, "
        "`.shape` follows the name. For exports; not part of the hash",
        (),
    ),
    "called_in": Column(
        "called_in",
        _Names,
        "paths of the modules that call the op's module in the forward pass, directly or not, but don't contain it. "
        "For exports; not part of the hash",
        (),
    ),
    "unrepeatable": Column(
        "unrepeatable",
        _Names,
        "paths of the modules that contain the op's module and can't be called again for the backward pass: nobody "
        "calls them, such as `nn.ModuleList`; a tensor, a list or an object that they are given is changed in the call "
        "or after it; they read tensors of others that they aren't given; or they change buffers, except for running "
        "statistics of batch norms and counters. Not part of the hash",
        (),
    ),
    "shared_with": Column(
        "shared_with",
        _Names,
        'paths of the modules, `""` for the model itself, whose tensors the op\'s module changes in place, or reads '
        "without getting them as arguments; its own path if it is given a list or a mapping that is changed, and "
        "others see the change. One op of such a module has them. For exports; not part of the hash",
        (),
    ),
    "own_gradients": Column(
        "own_gradients",
        _Names,
        "what makes gradients of its own in the forward pass: functions of `torch.autograd`, and hooks, each with the "
        "path of its module, as `Reversal in head`. One op has all of them. For exports; not part of the hash",
        (),
    ),
    "complex": Column(
        "complex", Flag, "whether its outputs are complex numbers. For exports; not part of the hash", False, np.bool_
    ),
    "gradient_of": Column(
        "gradient_of",
        Text,
        "for the ops that add up the gradient of a parameter over micro-batches, and for the op of type `gradient` at "
        "their end: the name of the parameter. Not part of the hash. Default: none",
        "",
    ),
}
"""Name of the field -> the column. `trained_bytes` and `state_bytes` aren't among them: what is usual of them depends
on other fields."""
_TAKEN = COLUMNS | {key: Column(key, Size, "", 0, np.int64) for key in ("trained_bytes", "state_bytes")}


def taken(
    graph: GraphArrays, like: np.ndarray, changes: Mapping[int, Mapping[str, Any]], signals: Sequence[int] = ()
) -> tuple[dict[str, Any], np.ndarray]:
    """Return the fields, without names, edges and colocation, of ops that are like those of a graph or made anew.

    Args:
        graph: N ops, T tensors.
        like: (ops,) int64, the op of the graph that each op is like; -1 for an op that is made anew.
        changes: op -> fields in which it differs from the one that it is like, or from the usual ones, with the keys of
            op records. Only ops that are made anew have "outputs".
        signals: ops that have a further output of 0 bytes.

    Returns:
        The fields; for each tensor, the tensor of the graph that it is like, or -1.
    """
    fields: dict[str, Any] = {}
    for name, column in _TAKEN.items():
        values = column.like(getattr(graph, name), like)
        for op, record in changes.items():
            if column.key in record:
                values[op] = record[column.key]
        fields[name] = values if column.dtype is not None else tuple(values)
    count, more = np.append(np.diff(graph.output_ptr), 0)[like], np.zeros(len(like), np.int64)
    more[list(signals)] = 1
    new_outputs = {op: record["outputs"] for op, record in changes.items() if "outputs" in record}
    count[list(new_outputs)] = [len(outputs) for outputs in new_outputs.values()]
    ptr = fields["output_ptr"] = np.append(0, np.cumsum(count + more))
    old = np.flatnonzero(like >= 0)
    source = np.full(ptr[-1], -1)
    source[ranges(ptr[old], count[old])] = ranges(graph.output_ptr[like[old]], count[old])
    fields["output_bytes"] = np.append(graph.output_bytes, 0)[source]
    fields["resident_outputs"] = np.append(graph.resident_outputs, False)[source]
    for op, outputs in new_outputs.items():
        fields["output_bytes"][ptr[op] : ptr[op] + count[op]] = outputs
    for op, record in changes.items():
        if "resident_outputs" in record:
            fields["resident_outputs"][ptr[op] : ptr[op] + count[op]] = False
            fields["resident_outputs"][ptr[op] + np.array(record["resident_outputs"], np.int64)] = True
    times = fields["time_us"] = {kind: np.append(us, np.nan)[like] for kind, us in graph.time_us.items()}
    for op, record in changes.items():
        for kind, us in record.get("time_us", {}).items():
            times.setdefault(kind, np.full(len(like), np.nan))[op] = us
    return fields, source


def ranges(first: np.ndarray, count: np.ndarray) -> np.ndarray:
    """Return the numbers from first[i] to first[i] + count[i] - 1, for each i in turn."""
    return np.arange(count.sum()) + np.repeat(first - np.cumsum(count) + count, count)
