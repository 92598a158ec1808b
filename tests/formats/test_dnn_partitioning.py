"""A hand-written workload of dnn-partitioning, and the real ones where they lie beside the project."""

import copy
import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from placeto.formats.dnn_partitioning import load
from placeto.formats.importers import IMPORTERS, find_importer
from placeto.placers import resolve_graph
from placeto.problem.cluster import load_cluster
from placeto.problem.graph import ComputationGraph, GraphError, load_graph, save_graph
from placeto.problem.grouping import group_ops
from placeto.problem.problem import PlacementProblem
from placeto.simulator.schedule import simulate
from tests.growth import assert_in_proportion
from tests.toys import random_graph

DATA = Path(__file__).parents[3] / "shared" / "data" / "dnn-partitioning"
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


def write(directory: Path, document: Any, name: str = "tiny.json") -> Path:
    path = directory / name
    data = json.dumps(document).encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
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


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"nodes": [], "x": "fpgaLatency", "edges": []}, "no op"),
        ({"nodes": SAMPLE["nodes"]}, "edges is missing"),
        ([1], r"must be an object, not \[1\]"),
        (changed(n_id="7"), r"nodes\['embed'\]\.id must be an integer, not '7'"),
        (changed(n_id=3), "node 3: id is there twice"),
        (changed(n_cpuLatency=-1), r"nodes\['embed'\]\.cpuLatency must be >= 0, not -1"),
        (changed(n_fpgaLatency=float("nan")), r"nodes\['embed'\]\.fpgaLatency must be a finite number, not nan"),
        (changed(n_size="big"), r"nodes\['embed'\]\.size must be a number, not 'big'"),
        (changed(e_destId=99), "edge 7 -> 99: 99 is the id of no node"),
        (changed(e_sourceId=None), "sourceId must be an integer"),
        (changed(e_size=-5), r"edges\[0\]\.size must be >= 0, not -5"),
        (changed(e_sourceId=4, e_destId=7), "cycle"),
        (changed(n_name=["n"]), r"nodes\[0\]\.name must be a string, not \['n'\]"),
        (changed(n_colorClass={"a": 1}), r"nodes\['embed'\]\.colorClass must be a string or an integer"),
        (changed(n_supportedOnFpga="no"), r"nodes\['embed'\]\.supportedOnFpga must be 0, 1, True or False, not 'no'"),
        (changed(n_isBackwardNode=[]), r"nodes\['embed'\]\.isBackwardNode must be 0, 1, True or False, not \[\]"),
        (
            changed(n_size=1e300),
            r"ops\['embed'\]\.param_bytes must be <= 9223372036854775807, not an integer of 997 bits",
        ),
        (changed(n_size=10**400), r"nodes\['embed'\]\.size must be a finite number, not inf"),
        (changed(n_cpuLatency=1e308), r"ops\['embed'\]\.time_us\.cpu must be a finite number, not inf"),
        (changed(e_size=1e300), "edge 7 -> 3: size must be <= 9223372036854775807, not an integer of 997 bits"),
        (
            {"nodes": SAMPLE["nodes"], "edges": [edge(7, 3, 1e300), edge(3, 4, 1e-300, 1e18)]},
            "edge 7 -> 3: size must be",
        ),
        ({"nodes": [3], "edges": []}, r"nodes\[0\] must be an object, not 3"),
    ],
)
def test_bad_files(tmp_path: Path, document: Any, message: str) -> None:
    path = write(tmp_path, document, "bad.json")
    with pytest.raises(GraphError, match=message) as caught:
        load(path)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


def test_recognised_by_content(tmp_path: Path) -> None:
    ours = tmp_path / "ours.json"
    save_graph(random_graph(0), ours)
    assert find_importer(ours) is None
    (tmp_path / "broken.json.gz").write_bytes(b"no gzip")
    assert find_importer(tmp_path / "broken.json.gz") is None
    for name in ("tiny.json", "tiny.json.gz"):
        path = write(tmp_path, SAMPLE, name)
        assert find_importer(path) is IMPORTERS["dnn-partitioning"]
        shown, graph = resolve_graph(str(path))
        assert (shown, graph.op_names) == (str(path), ("embed", "node3", "head"))
    assert resolve_graph(str(ours))[1].hash == random_graph(0).hash


def test_survives_our_own_format(tmp_path: Path) -> None:
    graph: ComputationGraph = load(write(tmp_path, changed(n_isBackwardNode=True)))
    save_graph(graph, tmp_path / "copy.json.gz")
    assert load_graph(tmp_path / "copy.json.gz").hash == graph.hash


@pytest.mark.skipif(not DATA.is_dir(), reason="the data is not here")
@pytest.mark.parametrize(
    ("name", "mode", "ops", "edges", "colours"),
    [
        ("latency-inputs/LayerGraphs/bert24_inference.json", "inference", 32, 55, 32),
        ("latency-inputs/LayerGraphs/resnet50_inference.json", "inference", 177, 193, 177),
        ("latency-inputs/OperatorGraphs/bert_l-3_inference.json", "inference", 235, 250, 117),
        ("latency-inputs/OperatorGraphs/resnet50_inference.json", "inference", 604, 619, 176),
        ("throughput-inputs/OperatorGraphs/bert_l-3_training.json", "training", 600, 817, 121),
    ],
)
def test_real_workloads(name: str, mode: str, ops: int, edges: int, colours: int) -> None:
    graph = load(DATA / name)
    assert (graph.mode, graph.num_ops, graph.num_edges) == (mode, ops, edges)
    assert len(np.unique(graph.colocation[graph.colocation >= 0])) == colours
    problem = PlacementProblem(graph, load_cluster("cpu+1xh100"))
    assert problem.op_time[:, 0].sum() > 9 * problem.op_time[:, 1].sum(), "the CPU is ten times slower"
    assert group_ops(problem).num_groups <= 200
    on_accelerator = simulate(problem, np.ones(ops, np.int64))
    assert on_accelerator.makespan_us == problem.single_device_us
    document = json.loads((DATA / name).read_text())
    total = sum(n["size"] for n in document["nodes"])
    assert on_accelerator.peak_memory[1] <= total * 1.01 + 4 * ops


@pytest.mark.skipif(not DATA.is_dir(), reason="the data is not here")
def test_splits_of_experts_are_no_graphs() -> None:
    assert find_importer(DATA / "human-experts" / "bert24_inference_expert.json") is None


def test_time_grows_as_the_file(tmp_path: Path) -> None:
    """Each size was looked for among all."""

    def read(count: int) -> Callable[[], object]:
        nodes = [node(i, 1.0, 1.0, 1.0) for i in range(count)]
        edges = [edge(0, i, 1.0, float(i)) for i in range(1, count)]
        path = write(tmp_path, {"nodes": nodes, "edges": edges})
        assert load(path).output_bytes.tolist() == list(range(1, count))
        return lambda: load(path)

    assert_in_proportion(read, 4_000)
