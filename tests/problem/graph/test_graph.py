import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placeto.errors import GraphError
from placeto.problem.graph import ComputationGraph, load_graph, save_graph
from tests.reference import random_graph

DIAMOND: list[dict[str, Any]] = [
    {"name": "top", "type": "mm", "flops": 2e9, "bytes_accessed": 12e6, "param_bytes": 400, "outputs": [40, 8]},
    {"name": "left", "outputs": [4], "inputs": [["top", 0]], "colocation": "g", "module": "net.0"},
    {"name": "right", "outputs": [4], "inputs": [["top", 1], ["top", 0]], "colocation": "g", "time_us": {"k80": 3.5}},
    {"name": "bottom", "inputs": [["left", 0], ["right", 0]]},
]


def _changed(op: int, **fields: Any) -> list[dict[str, Any]]:
    ops = [dict(record) for record in DIAMOND]
    ops[op] |= fields
    return ops


def test_arrays_of_a_diamond() -> None:
    graph = ComputationGraph.from_ops("diamond", DIAMOND)
    assert (graph.num_ops, graph.num_edges, graph.mode) == (4, 5, "training")
    assert graph.op_types == ("mm", "op", "op", "op")
    assert graph.flops.tolist() == [2e9, 0, 0, 0]
    assert graph.param_bytes.tolist() == [400, 0, 0, 0]
    assert graph.output_ptr.tolist() == [0, 2, 3, 4, 4]
    assert graph.output_bytes.tolist() == [40, 8, 4, 4]
    assert list(zip(graph.edge_src, graph.edge_dst, graph.edge_output, strict=True)) == [
        (0, 1, 0),
        (0, 2, 1),
        (0, 2, 0),
        (1, 3, 0),
        (2, 3, 0),
    ]
    assert graph.edge_tensor.tolist() == [0, 1, 0, 2, 3]
    assert graph.colocation.tolist() == [-1, 0, 0, -1]
    assert graph.modules == ("", "net.0", "", "")
    np.testing.assert_array_equal(graph.time_us["k80"], [np.nan, np.nan, 3.5, np.nan])
    assert graph.index == {"top": 0, "left": 1, "right": 2, "bottom": 3}
    assert graph.name_rank.tolist() == [3, 1, 2, 0]
    assert graph.topological_order.tolist() == [0, 1, 2, 3]


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 2**32), num_ops=st.integers(1, 60))
def test_topological_order_puts_producers_first(seed: int, num_ops: int) -> None:
    graph = random_graph(np.random.default_rng(seed), num_ops)
    position = np.empty(num_ops, np.int64)
    position[graph.topological_order] = np.arange(num_ops)
    assert (position[graph.edge_src] < position[graph.edge_dst]).all()
    assert [graph.op_names[i] for i in np.argsort(graph.name_rank)] == sorted(graph.op_names)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32), num_ops=st.integers(1, 40))
def test_records_round_trip(seed: int, num_ops: int) -> None:
    graph = random_graph(np.random.default_rng(seed), num_ops)
    assert ComputationGraph.from_ops("other name", graph.to_ops(), graph.mode).hash == graph.hash


def test_name_defaults_to_the_file_s(tmp_path: Path) -> None:
    path = tmp_path / "tiny.json.gz"
    path.write_bytes(gzip.compress(json.dumps({"format": "placeto.graph/1", "ops": [{"name": "a"}]}).encode()))
    assert load_graph(path).name == "tiny"


def test_to_networkx() -> None:
    graph = ComputationGraph.from_ops("diamond", DIAMOND).to_networkx()
    assert isinstance(graph, nx.MultiDiGraph)
    assert sorted(graph.edges(data="bytes")) == [
        ("left", "bottom", 4),
        ("right", "bottom", 4),
        ("top", "left", 40),
        ("top", "right", 8),
        ("top", "right", 40),
    ]
    assert graph.nodes["top"]["flops"] == 2e9


@pytest.mark.parametrize(
    ("ops", "message"),
    [
        ([], "the graph is empty"),
        (_changed(1, inputs=[["bottm", 0]]), "op 'left': input 'bottm' is no op of the graph"),
        (_changed(1, inputs=[["top", 2]]), "op 'left': input 'top' has 2 outputs, there is no output 2"),
        (_changed(1, name="top"), "op 'top': duplicate name"),
        (_changed(2, dtype="fp16"), r"ops\['right'\]\.dtype must be 'float64', .* or 'int8', not 'fp16'"),
        (_changed(2, flop=1), r"ops\['right'\]\.flop is unknown"),
        (_changed(2, colocation={"a": 1}), r"ops\['right'\]\.colocation must be a string or an integer"),
        (_changed(2, name="\x1b[31m", outputs=3), r"ops\['\\x1b\[31m'\]\.outputs must be a list, not 3"),
    ],
)
def test_bad_graphs_are_refused_in_one_sentence(ops: list[dict[str, Any]], message: str) -> None:
    with pytest.raises(GraphError, match=message) as refusal:
        ComputationGraph.from_ops("bad", ops)
    assert str(refusal.value).isprintable()
    assert len(str(refusal.value)) < 340


def test_paths_of_modules_are_as_deep_as_modules_can_be() -> None:
    assert ComputationGraph.from_ops("deep", _changed(1, module=".".join("a" * 400))).num_ops == 4
    for path in (".".join("a" * 401), "." * 100_000):
        says = f"op 'left': its module's path must have at most 400 parts, not {path.count('.') + 1}"
        with pytest.raises(GraphError, match=says):
            ComputationGraph.from_ops("deep", _changed(1, module=path))


def test_cycles_name_an_op_on_the_cycle() -> None:
    ops = [{"name": "before", "outputs": [1]}, {"name": "after", "inputs": [["b", 0]]}]
    ops += [{"name": "a", "outputs": [1], "inputs": [["b", 0], ["before", 0]]}]
    ops += [{"name": "b", "outputs": [1], "inputs": [["a", 0]]}]
    with pytest.raises(GraphError, match=r"op '[ab]': on a cycle"):
        ComputationGraph.from_ops("cyclic", ops)
    with pytest.raises(GraphError, match="op 'self': on a cycle"):
        ComputationGraph.from_ops("cyclic", [{"name": "self", "outputs": [1], "inputs": [["self", 0]]}])


def test_colocation_groups_may_be_numbers() -> None:
    ops = [{"name": name, "colocation": group} for name, group in (("a", 7), ("b", "7"), ("c", 8), ("d", None))]
    assert ComputationGraph.from_ops("g", ops).colocation.tolist() == [0, 0, 1, -1]


ARRAYS = ComputationGraph.from_ops("diamond", DIAMOND)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"flops": np.full(4, np.nan)}, "op 'top': flops must be a finite number >= 0, not nan"),
        ({"param_bytes": ARRAYS.param_bytes - 1}, "op 'left': param_bytes must be a finite number >= 0, not -1"),
        ({"time_us": {"k80": np.ones(3)}}, r"time_us\['k80'\] must be an array of 4 float64"),
        ({"dtypes": ("float32",) * 3}, "dtypes must have 4 values, one for each op"),
        ({"mode": ["training"]}, r"mode must be one of training, inference, not \['training'\]"),
    ],
)
def test_arrays_that_break_a_rule_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(GraphError, match=message) as refusal:
        replace(ARRAYS, **change)
    assert "\n" not in str(refusal.value)


def test_what_all_ops_compute_in_by_default_is_no_part_of_the_hash(tmp_path: Path) -> None:
    plain = ComputationGraph.from_ops("diamond", DIAMOND)
    assert plain.dtypes == ("float32",) * 4
    assert ComputationGraph.from_ops("diamond", _changed(0, dtype="float32", kernel="")).hash == plain.hash
    mixed = ComputationGraph.from_ops("diamond", _changed(1, dtype="tf32", kernel="grouped"))
    assert mixed.dtypes == ("float32", "tf32", "float32", "float32")
    assert mixed.kernels == ("", "grouped", "", "")
    save_graph(mixed, tmp_path / "mixed.json")
    assert load_graph(tmp_path / "mixed.json").hash == mixed.hash


def test_an_onnx_file_is_captured_first(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(b"\x08\x07")
    with pytest.raises(GraphError, match=r"an ONNX file; `placeto capture .*model.onnx -o graph.json`"):
        load_graph(path)
