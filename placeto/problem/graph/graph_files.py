"""Reading and writing graph files. `op_records` has the objects of their ops."""

from __future__ import annotations

from pathlib import Path

from placeto.problem.fields import (
    Field,
    anything,
    check_json_name,
    choice,
    items,
    quote,
    read_document,
    read_json,
    text,
    within,
    write_json,
)
from placeto.problem.graph.arrays import GraphError
from placeto.problem.graph.graph import FORMAT, ComputationGraph
from placeto.problem.graph.labels import MODES

_GRAPH = {
    "name": Field(text, None),
    "mode": Field(choice(*MODES), "training"),
    "ops": Field(items(anything, "an op")),
}


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
        values = read_document(document, FORMAT, "a graph file", _GRAPH, GraphError)
        name = Path(path).name.split(".")[0] if values["name"] is None else values["name"]
        return ComputationGraph.from_ops(name, values["ops"], values["mode"])


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
