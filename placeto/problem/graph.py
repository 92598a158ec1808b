"""The computation graph: what is placed.

Legend: N ops, T tensors (op outputs), E edges, K colocation groups.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from placeto.problem import graph_memory
from placeto.problem.dtypes import DTYPES
from placeto.problem.fields import (
    Field,
    anything,
    check_json_name,
    choice,
    integer,
    items,
    mapping,
    number,
    optional,
    quote,
    read_fields,
    read_json,
    size,
    text,
    within,
    write_json,
)
from placeto.problem.graph_checks import (
    KERNELS,
    KEYS,
    LABELS,
    MODES,
    NAMES,
    NO_MICRO_BATCH,
    PASSES,
    GraphError,
    topological_order,
    validate,
)
from placeto.problem.units import format_bytes

if TYPE_CHECKING:
    import networkx as nx

__all__ = ["FORMAT", "MODES", "ComputationGraph", "GraphError", "load_graph", "save_graph"]

FORMAT = "placeto.graph/1"


def _input(value: Any, key: str, error: type[ValueError]) -> tuple[str, int]:
    if not isinstance(value, list | tuple) or len(value) != 2:
        raise error(f"{key} must be [op name, output index], not {quote(value)}")
    return text(value[0], "the op name of an input", error), _INDEX(value[1], "the output index of an input", error)


def _label(value: Any, key: str, error: type[ValueError]) -> str | None:
    """A colocation group's: a string, or an integer; None is none."""
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
    "pass": Field(choice(*PASSES), LABELS["passes"]),
    "micro_batch": Field(optional(_INDEX), None),
}
_GRAPH = {
    "format": Field(text),
    "name": Field(text, None),
    "mode": Field(choice(*MODES), "training"),
    "ops": Field(items(anything, "an op")),
}


@dataclass(frozen=True, eq=False)
class ComputationGraph:
    """A directed acyclic graph of ops that exchange tensors.

    Edges are stored by consumer: the edges into op i stand together, in the order of its inputs.
    Two edges with the same (src, output) carry one tensor. Output o of op i is tensor
    ``output_ptr[i] + o``.

    Build one with `from_ops`, `load_graph` or `placeto.capture.trace`; the constructor validates.

    Raises:
        GraphError: a cycle, a dangling edge, a duplicate name, a negative or non-finite number,
            a size over int64, or no op at all; the message names the op.
    """

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

    def __post_init__(self) -> None:
        validate(self)
        graph_memory.complete(self, GraphError)
        arrays = [v for v in vars(self).values() if isinstance(v, np.ndarray)]
        for array in [*arrays, *self.time_us.values()]:
            array.setflags(write=False)

    def __repr__(self) -> str:
        work, size = f"{self.flops.sum() / 1e9:.3g} GFLOP", format_bytes(int(self.param_bytes.sum()))
        counts = f"{self.num_ops} ops, {self.num_edges} edges, {work}, parameters {size}"
        return f"ComputationGraph({self.name!r}, {self.mode}: {counts})"

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
    def topological_order(self) -> np.ndarray:
        """(N,) int64, op indices, every producer before its consumers; ties by op order."""
        order = topological_order(self.num_ops, self.edge_src, self.edge_dst)
        order.setflags(write=False)
        return order

    @cached_property
    def index(self) -> dict[str, int]:
        """Op index of each op name."""
        return {name: i for i, name in enumerate(self.op_names)}

    @cached_property
    def name_rank(self) -> np.ndarray:
        """(N,) int64, rank of each op name in string order: the simulator's tie-break."""
        rank = np.empty(self.num_ops, np.int64)
        rank[sorted(range(self.num_ops), key=self.op_names.__getitem__)] = np.arange(self.num_ops)
        return rank

    @cached_property
    def hash(self) -> str:
        """SHA-256 of the content (name of the graph excluded), 64 hex digits."""
        digest = hashlib.sha256(f"{FORMAT}\n{self.mode}\n".encode())
        for strings in (self.op_names, self.op_types, self.modules):
            digest.update(json.dumps(strings).encode())
        arrays = [self.flops, self.bytes_accessed, self.param_bytes, self.colocation]
        arrays += [self.output_ptr, self.output_bytes, self.edge_src, self.edge_dst, self.edge_output]
        for array in arrays:
            digest.update(array.tobytes())
        for key, array in graph_memory.unusual(self).items():
            digest.update(key.encode() + array.tobytes())
        for key, usual in LABELS.items():
            if set(getattr(self, key)) != {usual}:
                digest.update((key + json.dumps(getattr(self, key))).encode())
        if (self.micro_batches != NO_MICRO_BATCH).any():
            digest.update(b"micro_batches" + self.micro_batches.tobytes())
        for kind in sorted(self.time_us):
            digest.update(kind.encode())
            digest.update(np.where(np.isnan(self.time_us[kind]), np.nan, self.time_us[kind]).tobytes())
        return digest.hexdigest()

    @classmethod
    def from_ops(cls, name: str, ops: Sequence[Mapping[str, Any]], mode: str = "training") -> ComputationGraph:
        """Build a graph from op records as in the file format.

        >>> tiny = ComputationGraph.from_ops("tiny", [
        ...     {"name": "a", "type": "mm", "outputs": [4]},
        ...     {"name": "b", "type": "add", "inputs": [["a", 0]]}])
        >>> tiny.num_ops, tiny.num_edges
        (2, 1)

        Raises:
            GraphError: see the class.
        """
        return _from_ops(name, ops, mode)

    def to_ops(self) -> list[dict[str, Any]]:
        """Op records as in the file format; inverse of `from_ops`."""
        return _to_ops(self)

    def to_networkx(self) -> nx.MultiDiGraph:
        """A networkx MultiDiGraph with op names as nodes and ``bytes`` on nodes' and edges' data."""
        import networkx as nx

        graph = nx.MultiDiGraph(name=self.name, mode=self.mode)
        for record in self.to_ops():
            inputs = record.pop("inputs", [])
            name = record.pop("name")
            graph.add_node(name, **record)
            for source, output in inputs:
                graph.add_edge(source, name, output=output)
        for source, _, data in graph.edges(data=True):
            data["bytes"] = graph.nodes[source]["outputs"][data["output"]]
        return graph


def load_graph(path: str | Path) -> ComputationGraph:
    """Read a graph from ``.json`` or ``.json.gz`` (format "placeto.graph/1").

    Raises:
        GraphError: the file is not such a graph; the message names file and op.
        OSError: the file can't be read.
    """
    document = read_json(path, GraphError)
    with within(GraphError, path):
        if not isinstance(document, dict) or document.get("format") != FORMAT:
            raise GraphError(f'not a graph file: "format" must be "{FORMAT}"')
        values = read_fields(document, _GRAPH, GraphError)
        name = Path(path).name.split(".")[0] if values["name"] is None else values["name"]
        return ComputationGraph.from_ops(name, values["ops"], values["mode"])


def save_graph(graph: ComputationGraph, path: str | Path) -> None:
    """Write a graph as ``.json`` or ``.json.gz``.

    Raises:
        GraphError: the file has another name, or it is no graph.
        OSError: the file can't be written.
    """
    if not isinstance(graph, ComputationGraph):
        raise GraphError(f"save_graph needs a ComputationGraph, then a path, not {quote(graph)}")
    check_json_name(path, GraphError)
    write_json({"format": FORMAT, "name": graph.name, "mode": graph.mode, "ops": graph.to_ops()}, path)


def _from_ops(name: str, ops: Sequence[Mapping[str, Any]], mode: str) -> ComputationGraph:
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
    given = ([record[key] for record in records] for key in graph_memory.FIELDS)
    memory = graph_memory.defaults(mode, op_types, param_bytes, output_ptr)
    for (position, output), last in held.items():
        memory["held_until"][output_ptr[position] + output] = last
    return ComputationGraph(
        name=name,
        mode=mode,
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
        passes=tuple(record["pass"] for record in records),
        micro_batches=np.array(
            [NO_MICRO_BATCH if record["micro_batch"] is None else record["micro_batch"] for record in records], np.int64
        ),
        **graph_memory.overwrite(memory, output_ptr, *given),
    )


def _to_ops(graph: ComputationGraph) -> list[dict[str, Any]]:
    records: list[dict[str, Any]] = []
    starts, memory = np.searchsorted(graph.edge_dst, np.arange(graph.num_ops + 1)), graph_memory.records(graph)
    for i, name in enumerate(graph.op_names):
        record: dict[str, Any] = {"name": name, "type": graph.op_types[i]}
        record["flops"] = float(graph.flops[i])
        record["bytes_accessed"] = float(graph.bytes_accessed[i])
        record["param_bytes"] = int(graph.param_bytes[i])
        record["outputs"] = graph.output_bytes[graph.output_ptr[i] : graph.output_ptr[i + 1]].tolist()
        edges = range(starts[i], starts[i + 1])
        record["inputs"] = [[graph.op_names[graph.edge_src[e]], int(graph.edge_output[e])] for e in edges]
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
        records.append(record)
    return records
