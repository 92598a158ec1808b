from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placeto.graph import ComputationGraph, GraphError, load_graph, save_graph
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


def test_arrays_are_read_only() -> None:
    graph = ComputationGraph.from_ops("diamond", DIAMOND)
    for array in (graph.flops, graph.edge_src, graph.time_us["k80"], graph.topological_order):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1


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


@pytest.mark.parametrize("suffix", [".json", ".json.gz"])
def test_files_round_trip(tmp_path: Path, suffix: str) -> None:
    graph, path = ComputationGraph.from_ops("diamond", DIAMOND, "inference"), tmp_path / f"d{suffix}"
    save_graph(graph, path)
    loaded = load_graph(path)
    assert (loaded.name, loaded.mode, loaded.hash) == ("diamond", "inference", graph.hash)
    save_graph(loaded, tmp_path / f"again{suffix}")
    assert (tmp_path / f"again{suffix}").read_bytes() == path.read_bytes()


def test_name_defaults_to_the_file_s(tmp_path: Path) -> None:
    path = tmp_path / "tiny.json.gz"
    path.write_bytes(gzip.compress(json.dumps({"format": "placeto.graph/1", "ops": [{"name": "a"}]}).encode()))
    assert load_graph(path).name == "tiny"


@pytest.mark.parametrize(
    "change",
    [
        {"flops": 3e9},
        {"bytes_accessed": 1.0},
        {"param_bytes": 1},
        {"outputs": [40, 9]},
        {"colocation": "h"},
        {"module": "m"},
        {"type": "add"},
        {"time_us": {"k80": 1.0}},
        {"name": "summit"},
    ],
)
def test_hash_sees_every_field(change: dict[str, Any]) -> None:
    ops = _changed(0, **change)
    if "name" in change:
        ops = json.loads(json.dumps(ops).replace('["top"', '["summit"'))
    plain = ComputationGraph.from_ops("diamond", DIAMOND)
    assert ComputationGraph.from_ops("diamond", ops).hash != plain.hash
    assert ComputationGraph.from_ops("diamond", DIAMOND, "inference").hash != plain.hash


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
        (_changed(0, inputs=[["bottom", 0]]), "op 'top': input 'bottom' has 0 outputs, there is no output 0"),
        (_changed(1, inputs=[["bottm", 0]]), "op 'left': input 'bottm' is no op of the graph"),
        (_changed(1, inputs=[["top", 2]]), "op 'left': input 'top' has 2 outputs, there is no output 2"),
        (
            _changed(1, inputs=[["top", -1]]),
            "op 'left': the output index of an input must be .*, not -1",
        ),
        (_changed(1, inputs=["top"]), r"op 'left': each input must be \[op name, output index\]"),
        (_changed(1, name="top"), "op 'top': duplicate name"),
        (_changed(2, flops=float("nan")), "op 'right': flops must be a finite number >= 0, not nan"),
        (_changed(2, flops=float("inf")), "op 'right': flops must be a finite number"),
        (_changed(2, flops="1"), "op 'right': flops must be a finite number >= 0, not '1'"),
        (_changed(2, bytes_accessed=-1), "op 'right': bytes_accessed must be a finite number >= 0, not -1"),
        (_changed(2, param_bytes=1.5), "op 'right': param_bytes must be a whole number"),
        (
            _changed(2, param_bytes=2**63),
            "op 'right': param_bytes must be a whole number .*, not 9",
        ),
        (_changed(2, outputs=[-4]), "op 'right': an output must be a whole number of bytes from 0 .*, not -4"),
        (_changed(2, outputs=[2**63]), "op 'right': an output must be a whole number of bytes .*, not 9"),
        (_changed(2, time_us={"k80": -1.0}), r"op 'right': time_us\['k80'\] must be a finite number >= 0"),
        (_changed(2, time_us={"k80": float("nan")}), r"op 'right': time_us\['k80'\] must be a finite number"),
        (_changed(2, flop=1), "op 'right': unknown field 'flop'"),
        ([{"type": "mm"}], "op number 0: must be an object with a string"),
    ],
)
def test_bad_graphs_are_refused_in_one_sentence(ops: list[dict[str, Any]], message: str) -> None:
    with pytest.raises(GraphError, match=message) as refusal:
        ComputationGraph.from_ops("bad", ops)
    assert "\n" not in str(refusal.value)


def test_cycles_name_an_op_on_the_cycle() -> None:
    ops = [{"name": "before", "outputs": [1]}, {"name": "after", "inputs": [["b", 0]]}]
    ops += [{"name": "a", "outputs": [1], "inputs": [["b", 0], ["before", 0]]}]
    ops += [{"name": "b", "outputs": [1], "inputs": [["a", 0]]}]
    with pytest.raises(GraphError, match=r"op '[ab]': on a cycle"):
        ComputationGraph.from_ops("cyclic", ops)
    with pytest.raises(GraphError, match="op 'self': on a cycle"):
        ComputationGraph.from_ops("cyclic", [{"name": "self", "outputs": [1], "inputs": [["self", 0]]}])


def test_bad_mode_is_refused() -> None:
    with pytest.raises(GraphError, match="mode must be one of training, inference, not 'eval'"):
        ComputationGraph.from_ops("diamond", DIAMOND, "eval")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not valid JSON"),
        ("[]", '"format" must be "placeto.graph/1"'),
        ('{"format": "placeto.cluster/1"}', '"format" must be'),
        ('{"format": "placeto.graph/1"}', "ops is missing"),
        ('{"format": "placeto.graph/1", "ops": [], "opps": []}', "unknown field 'opps'"),
        (
            '{"format": "placeto.graph/1", "ops": [{"name": "a", "flops": NaN}]}',
            "op 'a': flops must be a finite number",
        ),
    ],
)
def test_bad_files_are_refused_by_name(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "bad.json"
    path.write_text(text)
    with pytest.raises(GraphError, match=message) as refusal:
        load_graph(path)
    assert str(refusal.value).startswith(f"{path}: ")


def test_a_broken_gzip_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "bad.json.gz"
    path.write_bytes(b"no gzip")
    with pytest.raises(GraphError, match=r"bad\.json\.gz: not a whole gzip file"):
        load_graph(path)
