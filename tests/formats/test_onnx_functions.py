"""ONNX models whose nodes call functions of the file, or ops of other domains."""

from pathlib import Path

import numpy as np
import pytest

from placeto.errors import GraphError
from placeto.formats.onnx_import.onnx_model import load_here
from placeto.problem.graph import ComputationGraph
from placeto.problem.graph.uncounted import without_formula

onnx = pytest.importorskip("onnx")
helper, FLOAT = onnx.helper, onnx.TensorProto.FLOAT


def read(
    folder: Path, nodes: list, out: list | None, functions: tuple = (), domains: tuple = ("mine",)
) -> ComputationGraph:
    x, y = (helper.make_tensor_value_info(name, FLOAT, shape) for name, shape in (("x", [3, 5]), ("y", out)))
    weight = onnx.numpy_helper.from_array(np.ones((5, 6), np.float32), "w")
    opsets = [helper.make_opsetid("", 20), *(helper.make_opsetid(domain, 1) for domain in domains)]
    graph = helper.make_graph(nodes, "g", [x], [y], [weight])
    onnx.save(helper.make_model(graph, opset_imports=opsets, functions=list(functions)), folder / "model.onnx")
    return load_here(folder / "model.onnx")


def function(opset: int, *nodes: object, others: tuple = ()) -> object:
    opsets = [helper.make_opsetid("", opset), *(helper.make_opsetid(domain, 1) for domain in others)]
    return helper.make_function("mine", "F", ["x", "w"], ["y"], list(nodes), opsets)


CALL = helper.make_node("F", ["x", "w"], ["y"], domain="mine")
PRODUCT = helper.make_node("MatMul", ["x", "w"], ["y"])


@pytest.mark.parametrize("opset", [13, 20])
def test_the_body_of_a_function_counts(tmp_path: Path, opset: int) -> None:
    """Also that of one which was written for another opset, if its ops have stayed the same since."""
    graph = read(tmp_path, [CALL], None, (function(opset, PRODUCT),))
    assert graph.op_types == ("parameter", "onnx.MatMul")
    assert graph.flops.sum() == 2 * 3 * 5 * 6


def test_a_function_of_another_opset_is_refused(tmp_path: Path) -> None:
    body = helper.make_node("MatMul", ["x", "w"], ["a"]), helper.make_node("Softmax", ["a"], ["y"])
    with pytest.raises(GraphError, match=r"its functions can't be replaced by their bodies .*: convert the model"):
        read(tmp_path, [CALL], [3, 6], (function(11, *body),))


def test_a_function_may_name_domains_that_the_model_does_not(tmp_path: Path) -> None:
    body = helper.make_node("FusedMatMul", ["x", "w"], ["y"], domain="com.microsoft")
    graph = read(tmp_path, [CALL], [3, 6], (function(20, body, others=("com.microsoft",)),))
    assert without_formula(graph) == {"onnx.FusedMatMul": 1}


@pytest.mark.parametrize("kind", ["Mystery", "MatMul"])
def test_ops_of_other_domains_have_no_formula_and_are_told(tmp_path: Path, kind: str) -> None:
    graph = read(tmp_path, [helper.make_node(kind, ["x", "w"], ["y"], domain="mine")], [3, 6])
    assert (without_formula(graph), graph.flops.sum()) == ({f"onnx.mine.{kind}": 1}, 0)


def test_an_einsum_of_one_tensor_needs_no_formula(tmp_path: Path) -> None:
    graph = read(tmp_path, [helper.make_node("Einsum", ["x"], ["y"], equation="ij->ji")], None)
    assert without_formula(graph) == {}
