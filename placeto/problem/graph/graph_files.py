"""Reading and writing graph files. `op_records` has the objects of their ops."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Required

from placeto.errors import GraphError
from placeto.problem.checks import OneOf, Record, Text, read_document
from placeto.problem.graph.graph import FORMAT, ComputationGraph
from placeto.problem.graph.label_values import MODES
from placeto.problem.graph.unnamed_sums import with_named_sums
from placeto.problem.json_files import check_json_name, read_json, write_json
from placeto.problem.messages import quote, within


class GraphRecord(Record, total=False):
    """The content of a graph file; the ops are checked by `ComputationGraph.from_ops`."""

    name: Text  # name of the graph; not part of its hash. Default: the file's name
    mode: Annotated[str, OneOf(MODES)]
    """In training, parameters have gradients and optimizer state. Default: `"training"`"""
    ops: Required[list[Any]]  # at least one op, in any order; cycles are refused


def load_graph(path: str | Path) -> ComputationGraph:
    """Read a graph from ``.json`` or ``.json.gz`` (format "placeto.graph/1").

    Raises:
        GraphError: the file has no graph of this format; the message names file and op.
        OSError: the file can't be read.
    """
    if str(path).endswith(".onnx"):
        raise GraphError(f"{path}: an ONNX file; `placeto capture {path} -o graph.json` makes a graph file of it")
    document = read_json(path, GraphError)
    with within(GraphError, path):
        values = read_document(document, FORMAT, "a graph file", GraphRecord, GraphError)
        name = values.get("name", Path(path).name.split(".")[0])
        return with_named_sums(ComputationGraph.from_ops(name, values["ops"], values.get("mode", "training")))


def save_graph(graph: ComputationGraph, path: str | Path) -> None:
    """Write a graph as ``.json`` or ``.json.gz``.

    Raises:
        GraphError: the name doesn't end in .json or .json.gz, or `graph` is no `ComputationGraph`.
        OSError: the file can't be written.
    """
    if not isinstance(graph, ComputationGraph):
        raise GraphError(f"save_graph needs a ComputationGraph, then a path, not {quote(graph)}")
    check_json_name(path, GraphError)
    write_json({"format": FORMAT, "name": graph.name, "mode": graph.mode, "ops": graph.to_ops()}, path)
