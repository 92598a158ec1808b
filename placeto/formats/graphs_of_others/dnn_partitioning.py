"""Workloads of dnn-partitioning (Tarnawski et al., NeurIPS 2020), as JSON.

    {"maxSizePerFPGA": bytes, "maxFPGAs": 6, "maxCPUs": 1,
     "nodes": [{"id": 3, "name": "node3", "supportedOnFpga": 1, "cpuLatency": ms, "fpgaLatency": ms,
                "isBackwardNode": 0, "colorClass": 3, "size": bytes}, ...],
     "edges": [{"sourceId": 3, "destId": 5, "cost": ms, "size": bytes}, ...]}

"Fpga" stands for any accelerator. The three ``max`` fields describe a machine; they are not read, as the cluster is
given separately.
"""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from statistics import median
from typing import Annotated, Any, Literal, NotRequired

import numpy as np
from pydantic import AfterValidator, Field

from placeto.errors import GraphError
from placeto.formats.graphs_of_others.lines import content
from placeto.problem.checks import Number, OpenRecord, Size, Text, checked
from placeto.problem.graph import ComputationGraph
from placeto.problem.json_files import read_json
from placeto.problem.messages import within
from placeto.problem.problem import PARAM_MULTIPLIER

CPU_KINDS = ("cpu", "cpu-core")
"""Device kinds that take an op's CPU latency; all others take that of the accelerator."""

_US_PER_MS = 1000.0
_BYTES_PER_MS = 2 * 2**30 / 1000.0  # 2 GiB/s, upstream's link


_Id = Annotated[int, Field(strict=True, ge=-(2**63), lt=2**63)]
_Either = Annotated[Literal[0, 1, True, False], AfterValidator(bool)]  # upstream writes both numbers and booleans


class NodeRecord(OpenRecord):
    """A node of a workload."""

    id: _Id
    name: NotRequired[Text | None]
    supportedOnFpga: NotRequired[_Either]
    isBackwardNode: NotRequired[_Either]
    cpuLatency: NotRequired[Number]
    fpgaLatency: NotRequired[Number]
    size: NotRequired[Number]
    colorClass: NotRequired[Text | _Id | None]


class EdgeRecord(OpenRecord):
    """An edge of a workload."""

    sourceId: _Id
    destId: _Id
    cost: NotRequired[Number]
    size: NotRequired[Number]


class WorkloadRecord(OpenRecord):
    """A workload."""

    nodes: list[NodeRecord]
    edges: list[EdgeRecord]


_NODE = {
    "name": None,
    "supportedOnFpga": True,
    "isBackwardNode": False,
    "cpuLatency": 0.0,
    "fpgaLatency": 0.0,
    "size": 0.0,
    "colorClass": None,
}
_EDGE = {"cost": 0.0, "size": None}


def recognises(path: Path) -> bool:
    """Whether a file's name ends in ``.json`` or ``.json.gz``, and the file has a field "fpgaLatency"."""
    return path.name.endswith((".json", ".json.gz")) and b'"fpgaLatency"' in content(path)


def load(path: str | Path) -> ComputationGraph:
    """Read a graph: it has one op per node, in the file's order; nodes of one colour class are colocated.

    Times: the CPU latency for `CPU_KINDS`, the accelerator's for all other kinds of device. If an accelerator does not
    support a node, the node takes more than twice the CPU time of the whole graph there. So in a cluster with a CPU, no
    good placement puts the node there; in one without a CPU, makespans mean little.

    Tensors: edges of one size that leave a node carry one tensor. The bytes of a transfer come from ``size``, not from
    ``cost``, which is 1000 times too small in upstream's throughput-inputs/LayerGraphs. If an edge has only a cost, its
    size follows from the median rate of the file's other edges, or from 2 GiB/s if there are none. Sizes are rounded up
    to whole bytes (upstream writes 0.125 for a tensor of no importance).

    Memory: a node's ``size`` is all memory that it takes. What is left of it without the output tensors is resident; in
    training that includes gradients, so it is divided by the multiplier that the cost model applies to parameters.

    Names are those of the file, or ``node<id>``; a name of several nodes becomes ``<name>#<id>``. The graph is a
    training step if any node is a backward one. Edges are read as they are. In upstream's LayerGraphs of training steps
    the edges between backward nodes run the wrong way, on which a throughput does not depend, but a makespan does.

    Raises:
        GraphError: not such a file; the message names the file and the node or edge.
        OSError: the file can't be read.
    """
    document = read_json(path, GraphError)
    with within(GraphError, path):
        return _graph(document, Path(path).name.split(".")[0])


def _graph(document: Any, name: str) -> ComputationGraph:
    values = checked(document, WorkloadRecord, GraphError)
    nodes = [_NODE | node for node in values["nodes"]]
    edges = [_EDGE | edge for edge in values["edges"]]
    mode = "training" if any(node["isBackwardNode"] for node in nodes) else "inference"
    return ComputationGraph.from_ops(name, _ops(nodes, edges, mode), mode)


def _ops(nodes: list[dict[str, Any]], edges: list[dict[str, Any]], mode: str) -> list[dict[str, Any]]:
    names = _names(nodes)
    everything_us = _US_PER_MS * sum(node["cpuLatency"] for node in nodes)
    ops = {node["id"]: _op(node, names[node["id"]], everything_us) for node in nodes}
    outputs: dict[int, dict[int, int]] = {node["id"]: {} for node in nodes}  # size -> which output
    for edge, carried in zip(edges, _edge_bytes(edges), strict=True):
        src, dst = edge["sourceId"], edge["destId"]
        for end in (src, dst):
            if end not in ops:
                raise GraphError(f"edge {src} -> {dst}: {end} is the id of no node")
        ops[dst]["inputs"].append([names[src], outputs[src].setdefault(carried, len(outputs[src]))])
    for node in nodes:
        op = ops[node["id"]]
        op["outputs"] = list(outputs[node["id"]])
        resident = max(0, math.ceil(node["size"]) - sum(op["outputs"]))
        op["param_bytes"] = -(-resident // PARAM_MULTIPLIER[mode])
    return list(ops.values())


def _op(node: dict[str, Any], name: str, everything_us: float) -> dict[str, Any]:
    cpu_us, accelerator_us = _US_PER_MS * node["cpuLatency"], _US_PER_MS * node["fpgaLatency"]
    if not node["supportedOnFpga"]:
        accelerator_us = 2 * everything_us + cpu_us + 1.0
    times = {"*": accelerator_us, **dict.fromkeys(CPU_KINDS, cpu_us)}
    record: dict[str, Any] = {"name": name, "type": "op", "inputs": [], "time_us": times}
    if node["isBackwardNode"]:
        record["type"] = "op.backward"
    if node["colorClass"] is not None:
        record["colocation"] = str(node["colorClass"])
    return record


def _names(nodes: list[dict[str, Any]]) -> dict[int, str]:
    """Id of a node -> name of its op.

    Raises:
        GraphError: two nodes have the same id.
    """
    names: dict[int, str] = {}
    for node in nodes:
        if node["id"] in names:
            raise GraphError(f"node {node['id']}: id is there twice")
        names[node["id"]] = node["name"] or f"node{node['id']}"
    count = Counter(names.values())
    return {i: name if count[name] == 1 else f"{name}#{i}" for i, name in names.items()}


def _edge_bytes(edges: list[dict[str, Any]]) -> list[int]:
    """Return the bytes that each edge carries."""
    rates = [edge["size"] / edge["cost"] for edge in edges if edge["size"] and edge["cost"]]
    rate = median(rates) if rates else _BYTES_PER_MS
    carried = []
    for edge in edges:
        with within(GraphError, f"edge {edge['sourceId']} -> {edge['destId']}"):
            exact = np.round(edge["cost"] * rate) if edge["size"] is None else np.ceil(edge["size"])
            carried.append(checked(float(exact), Size, GraphError, "size"))
    return carried
