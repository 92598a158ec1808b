"""The computation graph: what is placed.

Legend: N ops, T tensors (op outputs), E edges, K colocation groups.
"""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from placeto import graph_memory
from placeto.graph_order import topological_order

if TYPE_CHECKING:
    import networkx as nx

FORMAT = "placeto.graph/1"
MODES = ("training", "inference")
_INT64_MAX = 2**63 - 1
_GRAPH_FIELDS = {"format", "name", "mode", "ops"}
_OP_FIELDS = {
    "name",
    "type",
    "flops",
    "bytes_accessed",
    "param_bytes",
    "outputs",
    "inputs",
    "colocation",
    "module",
    "time_us",
    *graph_memory.FIELDS,
}


class GraphError(ValueError):
    """A graph, or a graph file, that breaks a rule of the format."""


@dataclass(frozen=True, eq=False)
class ComputationGraph:
    """A directed acyclic graph of ops that exchange tensors.

    Edges are stored by consumer: the edges into op i stand together, in the order of its inputs.
    Two edges with the same (src, output) carry one tensor. Output o of op i is tensor
    ``output_ptr[i] + o``.

    Build one with `from_ops`, `load_graph` or `placeto.capture`; the constructor validates.

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

    def __post_init__(self) -> None:
        _validate(self)
        graph_memory.complete(self, GraphError)
        arrays = [v for v in vars(self).values() if isinstance(v, np.ndarray)]
        for array in [*arrays, *self.time_us.values()]:
            array.setflags(write=False)

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
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise GraphError(f'{path}: not a graph file: "format" must be "{FORMAT}"')
    unknown = set(document) - _GRAPH_FIELDS
    if unknown:
        raise GraphError(f"{path}: unknown field {min(unknown)!r}; known: {', '.join(sorted(_GRAPH_FIELDS))}")
    ops = document.get("ops")
    if not isinstance(ops, list):
        raise GraphError(f'{path}: "ops" must be a list')
    name = document.get("name", Path(path).name.split(".")[0])
    try:
        return ComputationGraph.from_ops(str(name), ops, document.get("mode", "training"))
    except GraphError as error:
        raise GraphError(f"{path}: {error}") from None


def save_graph(graph: ComputationGraph, path: str | Path) -> None:
    """Write a graph as ``.json`` or ``.json.gz``."""
    write_json({"format": FORMAT, "name": graph.name, "mode": graph.mode, "ops": graph.to_ops()}, path)


def read_json(path: str | Path, error: type[ValueError]) -> Any:
    """Parse a JSON file, gzip-compressed where the name ends in ``.gz``.

    Raises:
        error: the content is no JSON; the message names the file.
        OSError: the file can't be read.
    """
    path = Path(path)
    try:
        data = path.read_bytes()
        return json.loads(gzip.decompress(data) if path.suffix == ".gz" else data)
    except (json.JSONDecodeError, UnicodeDecodeError, gzip.BadGzipFile, EOFError) as problem:
        raise error(f"{path}: not valid JSON: {problem}") from None


def write_json(document: Any, path: str | Path) -> None:
    """Write a JSON file, gzip-compressed (reproducibly) where the name ends in ``.gz``."""
    path = Path(path)
    data = json.dumps(document, indent=1 if path.suffix != ".gz" else None).encode()
    path.write_bytes(gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)


def _number(record: Mapping[str, Any], key: str, op: str, *, integer: bool = False) -> float:
    value = record.get(key, 0)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise GraphError(f"op {op!r}: {key} must be a number, not {value!r}")
    if integer:
        return _size(value, key, op)
    return float(value)


def _size(value: Any, key: str, op: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise GraphError(f"op {op!r}: {key} must be whole bytes, not {value!r}")
    if not np.isfinite(value) or value < 0 or value != int(value):
        raise GraphError(f"op {op!r}: {key} must be a whole number of bytes >= 0, not {value!r}")
    if value > _INT64_MAX:
        raise GraphError(f"op {op!r}: {key} = {value!r} is over the int64 limit {_INT64_MAX}")
    return int(value)


def _from_ops(name: str, ops: Sequence[Mapping[str, Any]], mode: str) -> ComputationGraph:
    index: dict[str, int] = {}
    for position, record in enumerate(ops):
        if not isinstance(record, Mapping) or not isinstance(record.get("name"), str):
            raise GraphError(f'op number {position}: must be an object with a string "name"')
        if record["name"] in index:
            raise GraphError(f"op {record['name']!r}: duplicate name")
        unknown = set(record) - _OP_FIELDS
        if unknown:
            raise GraphError(f"op {record['name']!r}: unknown field {min(unknown)!r}")
        index[record["name"]] = position
    outputs = [[_size(value, "output size", record["name"]) for value in _list(record, "outputs")] for record in ops]
    src, dst, out = [], [], []
    for position, record in enumerate(ops):
        for item in _list(record, "inputs"):
            if not (isinstance(item, list | tuple) and len(item) == 2):
                raise GraphError(f"op {record['name']!r}: each input must be [op name, output index], not {item!r}")
            if item[0] not in index:
                raise GraphError(f"op {record['name']!r}: input {item[0]!r} is no op of the graph")
            if isinstance(item[1], bool) or not isinstance(item[1], int):
                raise GraphError(f"op {record['name']!r}: output index of input {item[0]!r} must be an integer")
            src.append(index[item[0]])
            dst.append(position)
            out.append(item[1])
    groups: dict[str, int] = {}
    colocation = [
        -1 if record.get("colocation") is None else groups.setdefault(str(record["colocation"]), len(groups))
        for record in ops
    ]
    kinds = sorted({kind for record in ops for kind in record.get("time_us", {})})
    times = {kind: np.full(len(ops), np.nan) for kind in kinds}
    for position, record in enumerate(ops):
        for kind in record.get("time_us", {}):
            value = _number(record["time_us"], kind, record["name"])
            if not np.isfinite(value):
                raise GraphError(f"op {record['name']!r}: time_us[{kind!r}] must be finite, not {value}")
            times[kind][position] = value
    op_types = tuple(str(record.get("type", "op")) for record in ops)
    param_bytes = np.array([_number(r, "param_bytes", r["name"], integer=True) for r in ops], np.int64)
    output_ptr = np.cumsum([0, *map(len, outputs)], dtype=np.int64)
    trained = [_size(r["trained_bytes"], "trained_bytes", r["name"]) if "trained_bytes" in r else None for r in ops]
    resident = [_outputs(r, len(sizes)) for r, sizes in zip(ops, outputs, strict=True)]
    memory = graph_memory.defaults(mode, op_types, param_bytes, output_ptr)
    return ComputationGraph(
        name=name,
        mode=mode,
        op_names=tuple(index),
        op_types=op_types,
        flops=np.array([_number(record, "flops", record["name"]) for record in ops], np.float64),
        bytes_accessed=np.array([_number(record, "bytes_accessed", record["name"]) for record in ops], np.float64),
        param_bytes=param_bytes,
        colocation=np.array(colocation, np.int64),
        modules=tuple(str(record.get("module", "")) for record in ops),
        output_ptr=output_ptr,
        output_bytes=np.array([value for sizes in outputs for value in sizes], np.int64),
        edge_src=np.array(src, np.int64),
        edge_dst=np.array(dst, np.int64),
        edge_output=np.array(out, np.int64),
        time_us=times,
        **graph_memory.overwrite(memory, output_ptr, trained, resident),
    )


def _outputs(record: Mapping[str, Any], count: int) -> list[int] | None:
    """The indices of a record's resident outputs, if it says so."""
    if "resident_outputs" not in record:
        return None
    for output in (outputs := _list(record, "resident_outputs")):
        if isinstance(output, bool) or not isinstance(output, int) or not 0 <= output < count:
            valid = f"an index from 0 to {count - 1}" if count else "left out, as the op has no outputs"
            raise GraphError(f"op {record['name']!r}: resident_outputs must be {valid}, not {output!r}")
    return outputs


def _list(record: Mapping[str, Any], key: str) -> list[Any]:
    value = record.get(key, [])
    if not isinstance(value, list | tuple):
        raise GraphError(f"op {record['name']!r}: {key} must be a list, not {value!r}")
    return list(value)


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
        times = {kind: float(t[i]) for kind, t in graph.time_us.items() if not np.isnan(t[i])}
        if times:
            record["time_us"] = times
        record |= memory[i]
        records.append(record)
    return records


def _first_bad(names: Iterable[str], bad: np.ndarray) -> str | None:
    positions = np.flatnonzero(bad)
    return list(names)[positions[0]] if len(positions) else None


def _validate(graph: ComputationGraph) -> None:
    names, num_ops = graph.op_names, len(graph.op_names)
    if num_ops == 0:
        raise GraphError("the graph is empty: it has no op")
    if graph.mode not in MODES:
        raise GraphError(f"mode must be one of {', '.join(MODES)}, not {graph.mode!r}")
    if len(set(names)) != num_ops:
        seen: set[str] = set()
        twice = next(name for name in names if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise GraphError(f"op {twice!r}: duplicate name")
    numbers = {"flops": graph.flops, "bytes_accessed": graph.bytes_accessed, "param_bytes": graph.param_bytes}
    for key, values in numbers.items():
        if (op := _first_bad(names, ~np.isfinite(values) | (values < 0))) is not None:
            raise GraphError(f"op {op!r}: {key} must be finite and >= 0, not {values[names.index(op)]}")
    for kind, values in graph.time_us.items():
        if (op := _first_bad(names, np.isinf(values) | (values < 0))) is not None:
            raise GraphError(f"op {op!r}: time_us[{kind!r}] must be finite and >= 0, not {values[names.index(op)]}")
    sizes = (len(graph.op_types), len(graph.modules), len(graph.colocation), len(graph.output_ptr) - 1)
    if any(size != num_ops for size in sizes):
        raise GraphError(f"op_types, modules, colocation and output_ptr must match {num_ops} ops, not {sizes}")
    bad = np.flatnonzero(graph.output_bytes < 0)
    if len(bad):
        op = names[int(np.searchsorted(graph.output_ptr, bad[0], side="right")) - 1]
        raise GraphError(f"op {op!r}: output size must be >= 0, not {graph.output_bytes[bad[0]]}")
    for src, dst, output in zip(graph.edge_src, graph.edge_dst, graph.edge_output, strict=True):
        if not (0 <= src < num_ops and 0 <= dst < num_ops):
            raise GraphError(f"edge {src} -> {dst}: dangling, the graph has ops 0..{num_ops - 1}")
        count = graph.output_ptr[src + 1] - graph.output_ptr[src]
        if not 0 <= output < count:
            source, reader = names[src], names[dst]
            raise GraphError(f"op {reader!r}: input {source!r} has {count} outputs, there is no output {output}")
    if np.any(np.diff(graph.edge_dst) < 0):
        raise GraphError("edges must be grouped by consumer, in op order")
    order = graph.topological_order
    if len(order) < num_ops:
        blocked = min(set(range(num_ops)) - set(order.tolist()))
        raise GraphError(f"op {names[_on_cycle(graph, blocked, set(order.tolist()))]!r}: on a cycle")


def _on_cycle(graph: ComputationGraph, op: int, done: set[int]) -> int:
    """An op that lies on a cycle, found by walking unfinished producers from a blocked op."""
    seen: set[int] = set()
    while op not in seen:
        seen.add(op)
        producers = graph.edge_src[graph.edge_dst == op].tolist()
        op = next(p for p in producers if p not in done)
    return op
