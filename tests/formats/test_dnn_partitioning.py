"""A hand-written workload of dnn-partitioning."""

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np

from placeto.formats.graphs_of_others.dnn_partitioning import load
from placeto.problem.cluster import load_cluster
from placeto.problem.problem import PlacementProblem
from placeto.simulator.schedule import simulate

GIB = 2**30


def node(i: int, cpu: float, fpga: float, size: float, **more: Any) -> dict[str, Any]:
    return {"id": i, "supportedOnFpga": 1, "cpuLatency": cpu, "fpgaLatency": fpga, "size": size, **more}


def edge(src: int, dst: int, cost: float, size: float | None = None) -> dict[str, Any]:
    return {"sourceId": src, "destId": dst, "cost": cost} | ({} if size is None else {"size": size})


SAMPLE: dict[str, Any] = {
    "maxSizePerFPGA": 1e9,
    "maxFPGAs": 4,
    "maxCPUs": 1,
    "nodes": [
        node(7, 10.0, 1.0, 150.0, name="embed", colorClass=5, isBackwardNode=False),
        node(3, 20.0, 2.0, 60.0, colorClass=6, layerId=3),
        node(4, 5.0, 0.5, 0.0, name="head", colorClass=5, isBackwardNode=0),
    ],
    "edges": [edge(7, 3, 0.0, 100.0), edge(7, 4, 0.0, 100.0), edge(3, 4, 0.0, 0.125)],
}


def write(directory: Path, document: Any) -> Path:
    path = directory / "tiny.json"
    path.write_text(json.dumps(document))
    return path


def changed(**changes: Any) -> dict[str, Any]:
    """The sample with fields of its first node (n_...) or first edge (e_...) set."""
    document = copy.deepcopy(SAMPLE)
    for key, value in changes.items():
        document["nodes" if key[0] == "n" else "edges"][0][key[2:]] = value
    return document


def test_ops_edges_and_colours(tmp_path: Path) -> None:
    graph = load(write(tmp_path, SAMPLE))
    assert (graph.name, graph.mode, graph.op_names) == ("tiny", "inference", ("embed", "node3", "head"))
    records = {record["name"]: record for record in graph.to_ops()}
    assert records["embed"]["outputs"] == [100], "one tensor for all who read it"
    assert records["node3"]["outputs"] == [1], "whole bytes, rounded up"
    assert records["head"]["inputs"] == [["embed", 0], ["node3", 0]]
    assert graph.param_bytes.tolist() == [50, 59, 0], "what a node takes beyond its outputs"
    assert graph.colocation[0] == graph.colocation[2] != graph.colocation[1]


def test_times_by_kind_of_device(tmp_path: Path) -> None:
    graph = load(write(tmp_path, SAMPLE))
    mixed = PlacementProblem(graph, load_cluster("cpu+1xh100")).op_time
    assert mixed.tolist() == [[10000.0, 1000.0], [20000.0, 2000.0], [5000.0, 500.0]]
    assert PlacementProblem(graph, load_cluster("2xcpu-core")).op_time[0].tolist() == [10000.0, 10000.0]
    assert PlacementProblem(graph, load_cluster("2xv100")).op_time[0].tolist() == [1000.0, 1000.0]


def test_unsupported_on_accelerators(tmp_path: Path) -> None:
    graph = load(write(tmp_path, changed(n_supportedOnFpga=0)))
    problem = PlacementProblem(graph, load_cluster("cpu+1xh100"))
    assert problem.op_time[0, 0] == 10000.0
    on_cpu = simulate(problem, np.zeros(3, np.int64)).makespan_us
    assert problem.op_time[0, 1] > on_cpu, "all on the CPU is better than this one op on the accelerator"


def test_training_counts_all_memory_once(tmp_path: Path) -> None:
    graph = load(write(tmp_path, changed(n_isBackwardNode=True)))
    assert graph.mode == "training"
    assert graph.op_types[0] == "op.backward"
    problem = PlacementProblem(graph, load_cluster("2xv100"))
    assert problem.resident_bytes.tolist() == [52, 60, 0]


def test_sizes_from_costs(tmp_path: Path) -> None:
    document = copy.deepcopy(SAMPLE)
    document["edges"] = [edge(7, 3, 500.0), edge(3, 4, 1.0)]
    assert load(write(tmp_path, document)).output_bytes.tolist() == [GIB, round(2 * GIB / 1000)]
    # A file of costs that are 1000 times too small: its edges with both say so.
    document["edges"] = [edge(7, 3, 0.5), edge(3, 4, 0.25, GIB // 2)]
    assert load(write(tmp_path, document)).output_bytes.tolist() == [GIB, GIB // 2]
    # Where the size is given, the cost does not count.
    document["edges"] = [edge(7, 3, 123.0, 1000.0), edge(3, 4, 0.0, 1000.0)]
    assert load(write(tmp_path, document)).output_bytes.tolist() == [1000, 1000]


def test_sizes_that_differ_are_several_tensors(tmp_path: Path) -> None:
    document = changed(e_size=30.0)
    graph = load(write(tmp_path, document))
    assert graph.output_bytes.tolist() == [30, 100, 1]
    assert graph.edge_output.tolist() == [0, 1, 0]


def test_names_are_unique(tmp_path: Path) -> None:
    document = copy.deepcopy(SAMPLE)
    document["nodes"][0]["name"] = "head"
    assert load(write(tmp_path, document)).op_names == ("head#7", "node3", "head#4")
