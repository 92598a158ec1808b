"""Op records: one object for each op, in a graph file and as argument of `ComputationGraph.from_ops`.

Legend: N ops.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import numpy as np
from pydantic import AfterValidator, Field

from placeto.errors import GraphError
from placeto.problem.checks import Index, Number, Size, Text, checked, record_type
from placeto.problem.graph import memory_fields
from placeto.problem.graph.arrays import GraphArrays
from placeto.problem.graph.op_columns import COLUMNS
from placeto.problem.messages import quote

_ALWAYS = ("type", "flops", "bytes_accessed", "param_bytes")  # keys that records of a graph also have where it is usual
_Input = tuple[Text, Index]  # name of an op, and number of one of its outputs
_Label = Annotated[Text | Index | None, AfterValidator(lambda label: None if label is None else str(label))]


def _told(kind: Any, meaning: str, **default: Any) -> Any:
    """A type of fields, with what a field means in docs/file-formats.md."""
    return Annotated[kind, Field(description=meaning, json_schema_extra=default)]


OpRecord = record_type(
    "OpRecord",
    {"name": _told(Text, "a name that is unique in the graph")},
    {
        **{column.key: _told(column.kind, column.meaning, default=column.usual) for column in COLUMNS.values()},
        "outputs": _told(
            list[Size],
            "bytes of each tensor that it makes, in order. If the storage of a tensor is larger, an output that no op "
            "reads stands for the rest. Default: `[]`",
        ),
        "inputs": _told(
            list[_Input], "the tensors that it reads, each as `[op name, index of that op's output]`. Default: `[]`"
        ),
        "colocation": _told(_Label, "ops with the same value stay on one device. Default: free"),
        "time_us": _told(
            dict[Text, Number],
            "measured time on each kind of device; `*` stands for all other kinds. Default: by the cost model",
        ),
        "trained_bytes": _told(
            Size | None,
            "bytes of those of its parameters that are trained. Default: in training `param_bytes`, in inference 0",
        ),
        "state_bytes": _told(
            Size | None,
            "bytes of their gradients and optimizer state. Default: 3 times `trained_bytes`: gradient and Adam's two "
            "moments",
        ),
        "resident_outputs": _told(
            list[Index] | None,
            "indices of the outputs that are a parameter or its gradient; their memory is counted with the parameter. "
            "Default: `[0]` for type `parameter`",
        ),
        "held": _told(
            list[_Input],
            "which of its own outputs a variable or autograd keeps beyond their last use, each as `[op name, index of "
            "the output]`. The output is kept until the op of that name ends, if both ops are on one device. Not part "
            "of the hash. Default: `[]`",
        ),
    },
)
_USUAL: dict[str, Any] = {
    **{column.key: column.usual for column in COLUMNS.values()},
    **dict.fromkeys(("outputs", "inputs", "held"), ()),
    **dict.fromkeys(("colocation", "trained_bytes", "state_bytes", "resident_outputs")),
    "time_us": {},
}
"""Values of the fields that a record may lack."""


def fields_of_ops(ops: Sequence[Mapping[str, Any]], mode: str) -> dict[str, Any]:
    """Return the fields of a graph other than its name and mode, from op records.

    Raises:
        GraphError: a record breaks a rule of the format, or refers to an op that isn't there; the message names the op.
    """
    index: dict[str, int] = {}
    records = [_USUAL | record for record in checked(ops, list[OpRecord], GraphError, "ops")]  # type: ignore[valid-type]
    for position, record in enumerate(records):
        if index.setdefault(record["name"], position) != position:
            raise GraphError(f"op {quote(record['name'])}: duplicate name")
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
    columns = {name: column.of([record[column.key] for record in records]) for name, column in COLUMNS.items()}
    output_ptr = np.cumsum([0, *(len(record["outputs"]) for record in records)], dtype=np.int64)
    memory = memory_fields.usual(mode, columns["op_types"], columns["param_bytes"], output_ptr)
    for (position, output), last in held.items():
        memory["held_until"][output_ptr[position] + output] = last
    for position, record in enumerate(records):
        if (resident := record["resident_outputs"]) is not None:
            own = np.arange(output_ptr[position], output_ptr[position + 1])
            memory["resident_outputs"][own] = np.isin(own - output_ptr[position], resident)
    trained, state = (
        {position: record[key] for position, record in enumerate(records) if record[key] is not None}
        for key in ("trained_bytes", "state_bytes")
    )
    memory["trained_bytes"][list(trained)] = list(trained.values())
    memory["state_bytes"] = memory_fields.state_bytes(memory["trained_bytes"])
    memory["state_bytes"][list(state)] = list(state.values())
    return dict(
        op_names=tuple(index),
        colocation=np.array([groups.setdefault(r["colocation"], len(groups) - 1) for r in records], np.int64),
        output_ptr=output_ptr,
        output_bytes=np.array([value for record in records for value in record["outputs"]], np.int64),
        edge_src=np.array(src, np.int64),
        edge_dst=np.array(dst, np.int64),
        edge_output=np.array(out, np.int64),
        time_us={k: np.array([record["time_us"].get(k, np.nan) for record in records]) for k in kinds},
        **columns,
        **memory,
    )


def ops_of(graph: GraphArrays) -> list[dict[str, Any]]:
    """Return the op records of a graph: the inverse of `fields_of_ops`."""
    records: list[dict[str, Any]] = []
    memory = memory_fields.records(graph)
    values = [(column, column.listed(getattr(graph, name))) for name, column in COLUMNS.items()]
    for i, name in enumerate(graph.op_names):
        record: dict[str, Any] = {"name": name}
        for column, listed in values:
            if listed[i] != column.usual or column.key in _ALWAYS:
                record[column.key] = list(listed[i]) if isinstance(listed[i], tuple) else listed[i]
        record["outputs"] = graph.output_bytes[graph.output_ptr[i] : graph.output_ptr[i + 1]].tolist()
        outputs = graph.edge_output[graph.input_ptr[i] : graph.input_ptr[i + 1]].tolist()
        record["inputs"] = [[graph.op_names[src], output] for src, output in zip(graph.reads[i], outputs, strict=True)]
        if graph.colocation[i] >= 0:
            record["colocation"] = f"g{graph.colocation[i]}"
        times = {kind: float(t[i]) for kind, t in graph.time_us.items() if not np.isnan(t[i])}
        if times:
            record["time_us"] = times
        records.append(record | memory[i])
    return records
