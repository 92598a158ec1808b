"""Workloads of dnn-partitioning (Tarnawski et al., NeurIPS 2020), as JSON.

    {"maxSizePerFPGA": bytes, "maxFPGAs": 6, "maxCPUs": 1,
     "nodes": [{"id": 3, "name": "node3", "supportedOnFpga": 1, "cpuLatency": ms, "fpgaLatency": ms,
                "isBackwardNode": 0, "colorClass": 3, "size": bytes}, ...],
     "edges": [{"sourceId": 3, "destId": 5, "cost": ms, "size": bytes}, ...]}

"Fpga" stands for any accelerator. The three ``max`` fields describe a machine and are not read: name a cluster.
"""

from __future__ import annotations

import gzip
import math
from collections import Counter
from pathlib import Path
from statistics import median
from typing import Any

from placeto.cost import PARAM_MULTIPLIER
from placeto.graph import ComputationGraph, GraphError, read_json
from placeto.importers.common import ImporterError

CPU_KINDS = ("cpu", "cpu-core")
"""Device kinds that take an op's CPU latency; all others take that of the accelerator."""

_US_PER_MS = 1000.0
_BYTES_PER_MS = 2 * 2**30 / 1000.0  # 2 GiB/s, upstream's link


def recognises(path: Path) -> bool:
    """Whether it is a JSON file that speaks of latencies on an "fpga"."""
    if not path.name.endswith((".json", ".json.gz")):
        return False
    try:
        data = path.read_bytes()
        data = gzip.decompress(data) if path.suffix == ".gz" else data
    except (gzip.BadGzipFile, EOFError):
        return False
    return b'"fpgaLatency"' in data


def load(path: str | Path) -> ComputationGraph:
    """A graph from a workload file: one op per node, in the file's order; nodes of one colour class are colocated.

    Times: the CPU latency for `CPU_KINDS`, the accelerator's for all other kinds of device. Where an accelerator does
    not support a node, its time there is more than twice the CPU time of the whole graph: beside a CPU, no good
    placement puts it there; without one, makespans mean little.

    Tensors: edges that leave a node with one size carry one tensor. Transfers are by ``size``, not by ``cost``, which
    is 1000 times too small in upstream's throughput-inputs/LayerGraphs. Where an edge has only a cost, its size is
    worked out at the rate of the file's other edges, or at 2 GiB/s if there are none. Sizes are rounded up to whole
    bytes (upstream writes 0.125 for a tensor of no importance).

    Memory: a node's ``size`` is all that it takes. What it takes beyond its output tensors is resident; in training
    that includes gradients, so it is divided by the multiplier that the cost model applies to parameters.

    Names are those of the file, or ``node<id>``; a name that several nodes bear becomes ``<name>#<id>``. The graph is a
    training step if any node is a backward one. Edges are taken as they are: in upstream's LayerGraphs of training
    steps those between backward nodes run the wrong way, which a throughput does not depend on but a makespan does.

    Raises:
        ImporterError: not such a file; the message names the file and the node or edge.
        OSError: the file can't be read.
    """
    document = read_json(path, ImporterError)
    try:
        nodes, edges = _records(document, "nodes"), _records(document, "edges")
        mode = "training" if any(node.get("isBackwardNode") for node in nodes) else "inference"
        return ComputationGraph.from_ops(Path(path).name.split(".")[0], _ops(nodes, edges, mode), mode)
    except ValueError as problem:
        raise ImporterError(f"{path}: {problem}") from None


def _records(document: Any, key: str) -> list[dict[str, Any]]:
    records = document.get(key) if isinstance(document, dict) else None
    if not isinstance(records, list) or not all(isinstance(record, dict) for record in records):
        raise GraphError(f'not a dnn-partitioning workload: "{key}" must be a list of objects')
    return records


def _ops(nodes: list[dict[str, Any]], edges: list[dict[str, Any]], mode: str) -> list[dict[str, Any]]:
    names = _names(nodes)
    everything_us = _US_PER_MS * sum(_number(node, "cpuLatency", names[node["id"]]) for node in nodes)
    ops = {node["id"]: _op(node, names[node["id"]], everything_us) for node in nodes}
    outputs: dict[Any, list[int]] = {node["id"]: [] for node in nodes}
    for edge, size in zip(edges, _edge_bytes(edges), strict=True):
        src, dst = (_id(edge, key) for key in ("sourceId", "destId"))
        for end in (src, dst):
            if end not in ops:
                raise GraphError(f"edge {src!r} -> {dst!r}: {end!r} is the id of no node")
        if size not in outputs[src]:
            outputs[src].append(size)
        ops[dst]["inputs"].append([names[src], outputs[src].index(size)])
    for node in nodes:
        op = ops[node["id"]]
        op["outputs"] = outputs[node["id"]]
        resident = max(0, math.ceil(_number(node, "size", op["name"])) - sum(op["outputs"]))
        op["param_bytes"] = math.ceil(resident / PARAM_MULTIPLIER[mode])
    return list(ops.values())


def _op(node: dict[str, Any], name: str, everything_us: float) -> dict[str, Any]:
    cpu_us = _US_PER_MS * _number(node, "cpuLatency", name)
    accelerator_us = _US_PER_MS * _number(node, "fpgaLatency", name)
    if not node.get("supportedOnFpga", True):
        accelerator_us = 2 * everything_us + cpu_us + 1.0
    times = {"*": accelerator_us, **dict.fromkeys(CPU_KINDS, cpu_us)}
    record: dict[str, Any] = {"name": name, "type": "op", "inputs": [], "time_us": times}
    if node.get("isBackwardNode"):
        record["type"] = "op.backward"
    if node.get("colorClass") is not None:
        record["colocation"] = str(node["colorClass"])
    return record


def _names(nodes: list[dict[str, Any]]) -> dict[int, str]:
    """Name of the op of each node id."""
    repeated = [i for i, count in Counter(_id(node, "id") for node in nodes).items() if count > 1]
    if repeated:
        raise GraphError(f"node {repeated[0]}: id is there twice")
    names = {node["id"]: str(node.get("name") or f"node{node['id']}") for node in nodes}
    count = Counter(names.values())
    return {i: name if count[name] == 1 else f"{name}#{i}" for i, name in names.items()}


def _edge_bytes(edges: list[dict[str, Any]]) -> list[int]:
    """Bytes that each edge carries."""
    labels = [f"{edge.get('sourceId')!r} -> {edge.get('destId')!r}" for edge in edges]
    costs = [_number(edge, "cost", label, "edge") for edge, label in zip(edges, labels, strict=True)]
    sizes = [
        _number(edge, "size", label, "edge") if "size" in edge else None
        for edge, label in zip(edges, labels, strict=True)
    ]
    rates = [size / cost for size, cost in zip(sizes, costs, strict=True) if size and cost]
    rate = median(rates) if rates else _BYTES_PER_MS
    return [round(cost * rate) if size is None else math.ceil(size) for size, cost in zip(sizes, costs, strict=True)]


def _id(record: dict[str, Any], key: str) -> int:
    value = record.get(key)
    if isinstance(value, bool) or not isinstance(value, int):
        raise GraphError(f"{'node' if key == 'id' else 'edge'} {record!r}: {key} must be an integer, not {value!r}")
    return value


def _number(record: dict[str, Any], key: str, label: str, what: str = "node") -> float:
    value = record.get(key, 0)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
        raise GraphError(f"{what} {label}: {key} must be a number >= 0, not {value!r}")
    return float(value)
