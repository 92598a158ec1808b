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

from placeto.fields import (
    Field,
    anything,
    check_array,
    choice,
    integer,
    items,
    mapping,
    number,
    quote,
    read_fields,
    read_json,
    size,
    text,
    within,
    write_json,
)

if TYPE_CHECKING:
    import networkx as nx

FORMAT = "placeto.graph/1"
MODES = ("training", "inference")


class GraphError(ValueError):
    """A graph, or a graph file, that breaks a rule of the format."""


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
    "time_us": Field(mapping(number()), {}),
}
_GRAPH = {
    "format": Field(text),
    "name": Field(text, None),
    "mode": Field(choice(*MODES), "training"),
    "ops": Field(items(anything, "an op")),
}
_STRINGS = ("op_names", "op_types", "modules")
_ARRAYS: dict[str, tuple[type[np.generic], str]] = {  # dtype, and one for each of what
    "flops": (np.float64, "op"),
    "bytes_accessed": (np.float64, "op"),
    "param_bytes": (np.int64, "op"),
    "colocation": (np.int64, "op"),
    "output_ptr": (np.int64, "offset"),
    "output_bytes": (np.int64, "tensor"),
    "edge_src": (np.int64, "edge"),
    "edge_dst": (np.int64, "edge"),
    "edge_output": (np.int64, "edge"),
}


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

    def __post_init__(self) -> None:
        _validate(self)
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
        order = _topological_order(self.num_ops, self.edge_src, self.edge_dst)
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
    """Write a graph as ``.json`` or ``.json.gz``."""
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
    groups: dict[str | None, int] = {None: -1}
    kinds = sorted({kind for record in records for kind in record["time_us"]})
    return ComputationGraph(
        name=name,
        mode=mode,
        op_names=tuple(index),
        op_types=tuple(record["type"] for record in records),
        flops=np.array([record["flops"] for record in records], np.float64),
        bytes_accessed=np.array([record["bytes_accessed"] for record in records], np.float64),
        param_bytes=np.array([record["param_bytes"] for record in records], np.int64),
        colocation=np.array([groups.setdefault(r["colocation"], len(groups) - 1) for r in records], np.int64),
        modules=tuple(record["module"] for record in records),
        output_ptr=np.cumsum([0, *(len(record["outputs"]) for record in records)], dtype=np.int64),
        output_bytes=np.array([value for record in records for value in record["outputs"]], np.int64),
        edge_src=np.array(src, np.int64),
        edge_dst=np.array(dst, np.int64),
        edge_output=np.array(out, np.int64),
        time_us={k: np.array([record["time_us"].get(k, np.nan) for record in records]) for k in kinds},
    )


def _to_ops(graph: ComputationGraph) -> list[dict[str, Any]]:
    records: list[dict[str, Any]] = []
    starts = np.searchsorted(graph.edge_dst, np.arange(graph.num_ops + 1))
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
        records.append(record)
    return records


def _topological_order(num_ops: int, src: np.ndarray, dst: np.ndarray) -> np.ndarray:
    """Kahn's algorithm with a heap, so that ties go by op order; shorter than N if there is a cycle."""
    import heapq

    children: list[list[int]] = [[] for _ in range(num_ops)]
    missing = [0] * num_ops
    for parent, child in zip(src.tolist(), dst.tolist(), strict=True):
        children[parent].append(child)
        missing[child] += 1
    ready = [i for i in range(num_ops) if missing[i] == 0]
    order = []
    while ready:
        op = heapq.heappop(ready)
        order.append(op)
        for child in children[op]:
            missing[child] -= 1
            if missing[child] == 0:
                heapq.heappush(ready, child)
    return np.array(order, np.int64)


def _validate(graph: ComputationGraph) -> None:
    names, num_ops, num_tensors = graph.op_names, len(graph.op_names), np.size(graph.output_bytes)
    if num_ops == 0:
        raise GraphError("the graph is empty: it has no op")
    text(graph.name, "the name of the graph", GraphError)
    choice(*MODES)(graph.mode, "mode", GraphError)
    for key in _STRINGS:
        strings = getattr(graph, key)
        if not isinstance(strings, tuple) or len(strings) != num_ops:
            raise GraphError(f"{key} must be a tuple of {num_ops} strings, one for each op")
        for string in strings:
            text(string, f"each of {key}", GraphError)
    if len(set(names)) != num_ops:
        seen: set[str] = set()
        twice = next(name for name in names if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise GraphError(f"op {quote(twice)}: duplicate name")
    lengths = {"op": num_ops, "offset": num_ops + 1, "tensor": num_tensors, "edge": np.size(graph.edge_src)}
    for key, (kind, each) in _ARRAYS.items():
        check_array(getattr(graph, key), key, kind, lengths[each], GraphError)
    if not isinstance(graph.time_us, Mapping):
        raise GraphError("time_us must be a mapping of kinds of device to times")
    for kind_name, times in graph.time_us.items():
        text(kind_name, "a kind of device in time_us", GraphError)
        check_array(times, f"time_us[{quote(kind_name)}]", np.float64, num_ops, GraphError)

    numbers = {key: getattr(graph, key) for key in ("flops", "bytes_accessed", "param_bytes")}
    for key, values in numbers.items():
        _refuse(names, ~np.isfinite(values) | (values < 0), values, f"{key} must be a finite number >= 0")
    for kind_name, times in graph.time_us.items():
        rule = f"time_us[{quote(kind_name)}] must be a finite number >= 0"
        _refuse(names, np.isinf(times) | (times < 0), times, rule)
    group = graph.colocation
    _refuse(
        names, (group < -1) | (group >= num_ops), group, f"colocation must be -1 or a group from 0 to {num_ops - 1}"
    )

    ptr, src, dst = graph.output_ptr, graph.edge_src, graph.edge_dst
    if ptr[0] != 0 or ptr[-1] != num_tensors or (ptr[1:] < ptr[:-1]).any():
        raise GraphError(f"output_ptr must rise from 0 to the {num_tensors} outputs, not {quote(ptr.tolist())}")
    if (graph.output_bytes < 0).any():
        bad = int((graph.output_bytes < 0).argmax())
        op = names[int(np.searchsorted(ptr, bad, side="right")) - 1]
        raise GraphError(f"op {quote(op)}: an output must be bytes >= 0, not {graph.output_bytes[bad]}")
    dangling = (np.minimum(src, dst) < 0) | (np.maximum(src, dst) >= num_ops)
    if dangling.any():
        edge = int(dangling.argmax())
        raise GraphError(f"edge {src[edge]} -> {dst[edge]}: dangling, the graph has ops 0..{num_ops - 1}")
    missing = (graph.edge_output < 0) | (graph.edge_output >= np.diff(ptr)[src])
    if missing.any():
        edge = int(missing.argmax())
        source, reader = names[src[edge]], names[dst[edge]]
        outputs = f"{np.diff(ptr)[src[edge]]} outputs, there is no output {graph.edge_output[edge]}"
        raise GraphError(f"op {quote(reader)}: input {quote(source)} has {outputs}")
    if (dst[1:] < dst[:-1]).any():
        raise GraphError("edges must be grouped by consumer, in op order")
    order = graph.topological_order
    if len(order) < num_ops:
        blocked = min(set(range(num_ops)) - set(order.tolist()))
        raise GraphError(f"op {quote(names[_on_cycle(graph, blocked, set(order.tolist()))])}: on a cycle")


def _refuse(names: Sequence[str], bad: np.ndarray, values: np.ndarray, rule: str) -> None:
    """Raise an error that names the first op (N,) that is bad, if one is."""
    if bad.any():
        op = int(bad.argmax())
        raise GraphError(f"op {quote(names[op])}: {rule}, not {values[op]}")


def _on_cycle(graph: ComputationGraph, op: int, done: set[int]) -> int:
    """An op that lies on a cycle, found by walking unfinished producers from a blocked op."""
    seen: set[int] = set()
    while op not in seen:
        seen.add(op)
        producers = graph.edge_src[slice(*np.searchsorted(graph.edge_dst, [op, op + 1]))].tolist()
        op = next(p for p in producers if p not in done)
    return op
