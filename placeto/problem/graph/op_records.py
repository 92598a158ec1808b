"""Op records: one object for each op, in a graph file and as argument of `ComputationGraph.from_ops`.

Legend: N ops.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from placeto.problem.dtypes import DTYPES
from placeto.problem.fields import (
    Field,
    choice,
    integer,
    items,
    mapping,
    number,
    optional,
    quote,
    read_fields,
    size,
    text,
    within,
)
from placeto.problem.graph import memory_fields
from placeto.problem.graph.arrays import GraphArrays, GraphError
from placeto.problem.graph.labels import KERNELS, KEYS, LABELS, NAMES, NO_MICRO_BATCH, PASSES


def _input(value: Any, key: str, error: type[ValueError]) -> tuple[str, int]:
    if not isinstance(value, list | tuple) or len(value) != 2:
        raise error(f"{key} must be [op name, output index], not {quote(value)}")
    return text(value[0], "the op name of an input", error), _INDEX(value[1], "the output index of an input", error)


def _label(value: Any, key: str, error: type[ValueError]) -> str | None:
    """Check the label of a colocation group: a string, or an integer, which becomes a string; None = no group."""
    if value is None:
        return None
    return str(_INDEX(value, key, error)) if isinstance(value, int) else text(value, key, error)


_INDEX = integer()
_OP = {
    "name": Field(text),
    "type": Field(text, "op"),
    "flops": Field(number(), 0.0),
    "bytes_accessed": Field(number(), 0.0),
    "param_bytes": Field(size, 0),
    "outputs": Field(items(size, "an output"), ()),
    "inputs": Field(items(_input, "each input"), ()),
    "colocation": Field(_label, None),
    "module": Field(text, ""),
    "dtype": Field(choice(*DTYPES), LABELS["dtypes"]),
    "kernel": Field(choice(*KERNELS), LABELS["kernels"]),
    "time_us": Field(mapping(number()), {}),
    "trained_bytes": Field(optional(size), None),
    "state_bytes": Field(optional(size), None),
    "resident_outputs": Field(optional(items(_INDEX, "an index of resident_outputs")), None),
    "held": Field(items(_input, "each of held"), ()),
    "signature": Field(text, ""),
    "tensors": Field(items(text, "each of tensors"), ()),
    "reads": Field(items(text, "each of reads"), ()),
    "gradient_of": Field(text, ""),
    "pass": Field(choice(*PASSES), LABELS["passes"]),
    "micro_batch": Field(optional(_INDEX), None),
}


def fields_of_ops(ops: Sequence[Mapping[str, Any]], mode: str) -> dict[str, Any]:
    """Return the fields of a graph other than its name and mode, from op records.

    Raises:
        GraphError: a record breaks a rule of the format, or refers to an op that isn't there; the message names the op.
    """
    index: dict[str, int] = {}
    records = []
    for position, op in enumerate(ops):
        if not isinstance(op, Mapping) or not isinstance(op.get("name"), str):
            raise GraphError(f'op number {position}: must be an object with a string "name"')
        with within(GraphError, "op", op["name"]):
            records.append(read_fields(op, _OP, GraphError))
            if index.setdefault(op["name"], position) != position:
                raise GraphError("duplicate name")
    src, dst, out = [], [], []
    for position, record in enumerate(records):
        for source, output in record["inputs"]:
            if source not in index:
                raise GraphError(f"op {quote(record['name'])}: input {quote(source)} is no op of the graph")
            src.append(index[source])
            dst.append(position)
            out.append(output)
        for output in record["resident_outputs"] or ():
            if output >= (count := len(record["outputs"])):
                valid = f"an index from 0 to {count - 1}" if count else "left out, as the op has no outputs"
                raise GraphError(f"op {quote(record['name'])}: resident_outputs must be {valid}, not {output}")
    groups: dict[str | None, int] = {None: -1}
    held = {}
    for position, record in enumerate(records):
        for last, output in record["held"]:
            if last not in index or output >= len(record["outputs"]):
                raise GraphError(
                    f"op {quote(record['name'])}: held must be [op name, index of an output], not {[last, output]}"
                )
            held[position, output] = index[last]
    kinds = sorted({kind for record in records for kind in record["time_us"]})
    op_types = tuple(record["type"] for record in records)
    param_bytes = np.array([record["param_bytes"] for record in records], np.int64)
    output_ptr = np.cumsum([0, *(len(record["outputs"]) for record in records)], dtype=np.int64)
    given = ([record[key] for record in records] for key in memory_fields.FIELDS)
    memory = memory_fields.defaults(mode, op_types, param_bytes, output_ptr)
    for (position, output), last in held.items():
        memory["held_until"][output_ptr[position] + output] = last
    return dict(
        op_names=tuple(index),
        op_types=op_types,
        flops=np.array([record["flops"] for record in records], np.float64),
        bytes_accessed=np.array([record["bytes_accessed"] for record in records], np.float64),
        param_bytes=param_bytes,
        colocation=np.array([groups.setdefault(r["colocation"], len(groups) - 1) for r in records], np.int64),
        modules=tuple(record["module"] for record in records),
        output_ptr=output_ptr,
        output_bytes=np.array([value for record in records for value in record["outputs"]], np.int64),
        edge_src=np.array(src, np.int64),
        edge_dst=np.array(dst, np.int64),
        edge_output=np.array(out, np.int64),
        dtypes=tuple(record["dtype"] for record in records),
        kernels=tuple(record["kernel"] for record in records),
        time_us={k: np.array([record["time_us"].get(k, np.nan) for record in records]) for k in kinds},
        signatures=tuple(record["signature"] for record in records),
        module_tensors=tuple(tuple(record["tensors"]) for record in records),
        module_inputs=tuple(tuple(record["reads"]) for record in records),
        gradient_of=tuple(record["gradient_of"] for record in records),
        passes=tuple(record["pass"] for record in records),
        micro_batches=np.array(
            [NO_MICRO_BATCH if record["micro_batch"] is None else record["micro_batch"] for record in records], np.int64
        ),
        **memory_fields.overwrite(memory, output_ptr, *given),
    )


def ops_of(graph: GraphArrays) -> list[dict[str, Any]]:
    """Return the op records of a graph: the inverse of `fields_of_ops`."""
    records: list[dict[str, Any]] = []
    memory = memory_fields.records(graph)
    for i, name in enumerate(graph.op_names):
        record: dict[str, Any] = {"name": name, "type": graph.op_types[i]}
        record["flops"] = float(graph.flops[i])
        record["bytes_accessed"] = float(graph.bytes_accessed[i])
        record["param_bytes"] = int(graph.param_bytes[i])
        record["outputs"] = graph.output_bytes[graph.output_ptr[i] : graph.output_ptr[i + 1]].tolist()
        outputs = graph.edge_output[graph.input_ptr[i] : graph.input_ptr[i + 1]].tolist()
        record["inputs"] = [[graph.op_names[src], output] for src, output in zip(graph.reads[i], outputs, strict=True)]
        if graph.colocation[i] >= 0:
            record["colocation"] = f"g{graph.colocation[i]}"
        if graph.modules[i]:
            record["module"] = graph.modules[i]
        if graph.micro_batches[i] != NO_MICRO_BATCH:
            record["micro_batch"] = int(graph.micro_batches[i])
        for column, key in KEYS.items():
            if (label := getattr(graph, column)[i]) != LABELS[column]:
                record[key] = label
        times = {kind: float(t[i]) for kind, t in graph.time_us.items() if not np.isnan(t[i])}
        if times:
            record["time_us"] = times
        record |= memory[i]
        if graph.signatures[i]:
            record["signature"] = graph.signatures[i]
        for column, key in NAMES.items():
            if names := getattr(graph, column)[i]:
                record[key] = list(names)
        if graph.gradient_of[i]:
            record["gradient_of"] = graph.gradient_of[i]
        records.append(record)
    return records
