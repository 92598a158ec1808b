"""Damaged and hostile ONNX models end in one sentence, in seconds, and leave this process alone."""

import ast
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from placeto.errors import GraphError
from placeto.formats.onnx_import import onnx_model
from placeto.formats.onnx_import.onnx_model import load, load_here
from tests.growth import assert_in_proportion

onnx = pytest.importorskip("onnx")
helper, FLOAT, INT64 = onnx.helper, onnx.TensorProto.FLOAT, onnx.TensorProto.INT64
FILES = Path(__file__).parents[3] / "shared" / "cases" / "files"
HUGE = 10**9


def model(*nodes: object, weights: tuple = (), size: int = 4, domain: str = "") -> object:
    """Of x (size, 4), with an output y, and with ops of another domain."""
    info = helper.make_tensor_value_info
    x, y = info("x", FLOAT, [size, 4]), info("y", FLOAT, None)
    opsets = [helper.make_opsetid(name, 18 if not name else 1) for name in {"": 0, domain: 0}]
    return helper.make_model(helper.make_graph(nodes, "g", [x], [y], list(weights)), opset_imports=opsets)


def node(kind: str, *names: str, **attributes: object) -> object:
    """A node with the last name as its output."""
    return helper.make_node(kind, names[:-1], names[-1:], **attributes)


def weight(name: str, dims: list[int], values: int, dtype: int = FLOAT) -> object:
    tensor = onnx.TensorProto(name=name, data_type=dtype, dims=dims)
    getattr(tensor, "int64_data" if dtype == INT64 else "float_data").extend([1] * values)
    return tensor


def bomb(around: bool = False) -> object:
    """Local functions that call each other twice, forty deep; the last one calls the first if it goes around."""
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("me", 1)]
    functions = []
    for depth in range(40):
        last = depth == 39 and not around
        inner, domain = ("Relu", "") if last else (f"F{(depth + 1) % 40}", "me")
        calls = [node(inner, "x", "a", domain=domain), node(inner, "a", "y", domain=domain)]
        functions.append(helper.make_function("me", f"F{depth}", ["x"], ["y"], calls, opsets))
    found = model(node("F0", "x", "y", domain="me"), domain="me")
    found.functions.extend(functions)  # type: ignore[attr-defined]
    return found


def old_reshape() -> object:
    """Before opset 5 the shape was an attribute."""
    found = model(node("Reshape", "x", "a", shape=[2, 8]), MATMUL_8, weights=(weight("w", [8, 3], 24),))
    found.opset_import[0].version, found.ir_version = 1, 3  # type: ignore[attr-defined]
    return found


MATMUL, MATMUL_8 = node("MatMul", "x", "w", "y"), node("MatMul", "a", "w", "y")
SPLIT = helper.make_node("Split", ["x"], ["y", "z"], num_outputs=HUGE, axis=0)
SPARSE = helper.make_sparse_tensor(helper.make_tensor("w", FLOAT, [1], [1.0]), weight("i", [1], 1, INT64), [4, 4])
BRANCH = helper.make_graph([node("Relu", "x", "z")], "z", [], [helper.make_tensor_value_info("z", FLOAT, [4, 4])])
CONDITION = helper.make_tensor("c", onnx.TensorProto.BOOL, [], [True])
HOSTILE: dict[str, tuple[Callable[[], object], str]] = {
    "too many parts": (lambda: model(SPLIT), "damaged, or too much for the package onnx"),
    "no data": (
        lambda: model(node("Gather", "x", "w", "y"), weights=(weight("w", [HUGE], 1, INT64),)),
        r"weight 'w' has other values than its shape .*\(cannot reshape array of size 1 into shape \(1000000000,\)",
    ),
    "too little data": (lambda: model(MATMUL, weights=(weight("w", [4, 4], 15),)), "weight 'w' has other values"),
    "negative": (lambda: model(MATMUL, weights=(weight("w", [-4, -4], 16),)), "'w' has a dimension of -4"),
    "immense": (
        lambda: model(node("Constant", "c", value=weight("c", [2**40, 2**40], 0)), node("Add", "x", "c", "y")),
        "'c' has a shape of more than 2.58 elements",
    ),
    "immense input": (lambda: model(node("Relu", "x", "y"), size=2**62), "'[xy]' has a shape of more than 2.58"),
    "a result that is immense": (
        lambda: model(
            node("Expand", "x", "w", "a"),
            node("MatMul", "a", "x", "y"),
            weights=(helper.make_tensor("w", INT64, [3], [2**31, 2**31, 4]),),
        ),
        ".",
    ),
    "no dtype": (lambda: model(MATMUL, weights=(weight("w", [4, 4], 16, 99),)), r"weight 'w' has other .* dtype say"),
    "a cycle": (
        lambda: model(node("Add", "x", "b", "a"), node("Relu", "a", "b"), node("Relu", "b", "y")),
        "not as ONNX defines a model .*must be topologically sorted, however input 'b'",
    ),
    "two weights": (
        lambda: model(MATMUL, weights=(weight("w", [4, 4], 16), weight("w", [4, 5], 20))),
        "there are two weights 'w'",
    ),
    "a sparse constant": (
        lambda: model(node("Constant", "w", sparse_value=SPARSE), MATMUL),
        "node 'Constant': a sparse constant can't be imported",
    ),
    "no opset": (lambda: onnx.ModelProto(graph=model(node("Relu", "x", "y")).graph), "."),  # type: ignore[attr-defined]
    "a function that calls itself": (lambda: bomb(around=True), "Cycle detected|reading it crashed"),
    "functions without end": (bomb, "damaged, or too much for the package onnx"),
    "control flow": (
        lambda: model(node("If", "c", "y", then_branch=BRANCH, else_branch=BRANCH), weights=(CONDITION,)),
        "node 'If': If is control flow",
    ),
    "a shape that depends on values": (
        lambda: model(node("NonZero", "x", "n"), node("Cast", "n", "y", to=FLOAT)),
        r"node 'NonZero': the shape of 'n' isn't known \(NonZero\); shapes that depend on values",
    ),
    "no such output": (lambda: model(node("Relu", "x", "z")), "nothing makes 'y', an output of the model"),
    "an op with a name for terminals": (lambda: model(node("\x1b[31m", "x", "y")), r"OpType: \\x1b\[31m"),
    "a sequence": (
        lambda: model(node("SequenceConstruct", "x", "x", "s"), node("ConcatFromSequence", "s", "y", axis=0)),
        "node 'SequenceConstruct': the shape of 's' isn't known .*; only tensors can be imported, no sequences",
    ),
    "a reshape of an old opset": (old_reshape, "'a' isn't known .* ONNX infers few shapes of opset 1: convert the"),
    "an op that nobody knows": (
        lambda: model(node("Mystery", "x", "a", domain="me"), node("MatMul", "a", "x", "y"), domain="me"),
        "node 'Mystery': the shape of 'a' isn't known .* ops of 'me': the file must give them, as value_info",
    ),
}


APART = ("too many parts", "a result that is immense", "a function that calls itself", "functions without end")
"""Models that would do harm to this process."""


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_models_are_refused(tmp_path: Path, kind: str) -> None:
    make, message = HOSTILE[kind]
    path = tmp_path / "model.onnx"
    path.write_bytes(make().SerializeToString())  # type: ignore[attr-defined]
    with pytest.raises(GraphError, match=message) as refused:
        (load if kind in APART else load_here)(path)
    text = str(refused.value).removeprefix(f"{path}: ")
    assert text != str(refused.value)
    assert text.isprintable()
    assert len(text) < 500


@pytest.mark.skipif(not FILES.is_dir(), reason="these files are elsewhere")
@pytest.mark.parametrize("name", ["bad1", "bad2", "bad3", "bad4", "crash", "hang103", "hang104"])
def test_files_that_went_wrong(name: str) -> None:
    begin = time.monotonic()
    with pytest.raises(GraphError, match=name) as refused:
        load(FILES / f"{name}.onnx")
    assert str(refused.value).isprintable()
    assert time.monotonic() - begin < 5


def test_a_dimension_of_minus_one_is_one_without_a_value(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(model(node("Relu", "x", "y"), size=-1).SerializeToString())  # type: ignore[attr-defined]
    with pytest.raises(GraphError, match=r"the dimension has no value: 'x\.0'"):
        load_here(path)
    assert load_here(path, {"x.0": 3}).output_bytes.tolist() == [48]
    with pytest.raises(GraphError, match=r"dimension 'x\.0' must be below 2\^58"):
        load_here(path, {"x.0": 2**70})


def test_many_dimensions_and_odd_ones_are_named_in_one_line(tmp_path: Path) -> None:
    names = ["\x1b[31m", "two words", *(f"d{i}" * 40 for i in range(20))]
    x, y = (helper.make_tensor_value_info(name, FLOAT, names) for name in "xy")
    path = tmp_path / "model.onnx"
    onnx.save(helper.make_model(helper.make_graph([node("Relu", "x", "y")], "g", [x], [y])), path)
    with pytest.raises(
        GraphError, match=r"'\\x1b\[31m', 'two words', .* and 18 more; .*--dim 'two words'=8"
    ) as refused:
        load_here(path)
    assert str(refused.value).isprintable()
    assert len(str(refused.value).removeprefix(str(path))) < 500


def test_shapes_may_lie_in_another_file(tmp_path: Path) -> None:
    folder = tmp_path / "inner"
    folder.mkdir()
    shape = helper.make_tensor("s", INT64, [2], [2, 8])
    found = model(node("Reshape", "x", "s", "a"), MATMUL_8, weights=(shape, weight("w", [8, 3], 24)))
    data = np.array([2, 8]).tobytes()
    (folder / "model.data").write_bytes(data)
    for tensor in found.graph.initializer:  # type: ignore[attr-defined]
        tensor.ClearField("int64_data")
        tensor.ClearField("float_data")
        tensor.raw_data = data
        onnx.external_data_helper.set_external_data(tensor, "model.data", offset=0, length=len(data))
        tensor.ClearField("raw_data")
    path = folder / "model.onnx"
    path.write_bytes(found.SerializeToString())  # type: ignore[attr-defined]
    assert load_here(path).flops.sum() == 2 * 2 * 8 * 3
    (folder / "model.data").rename(tmp_path / "model.data")
    with pytest.raises(GraphError, match="node 'Reshape': its shape isn't known: the values of 's' are in another"):
        load_here(path)
    location = found.graph.initializer[0].external_data[0]  # type: ignore[attr-defined]
    location.value = "../model.data"
    path.write_bytes(found.SerializeToString())  # type: ignore[attr-defined]
    with pytest.raises(GraphError, match="node 'Reshape': its shape isn't known: the values of 's' are in another"):
        load_here(path)


def test_sizes_of_a_resize_are_no_weights(tmp_path: Path) -> None:
    scales = helper.make_tensor("s", FLOAT, [2], [2.0, 2.0])
    onnx.save(model(node("Resize", "x", "", "s", "y"), weights=(scales,)), tmp_path / "model.onnx")
    graph = load_here(tmp_path / "model.onnx")
    assert (graph.op_types, graph.param_bytes.sum()) == (("onnx.Resize",), 0)


@pytest.mark.slow
def test_many_nodes_without_names(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"

    def read(count: int) -> Callable[[], object]:
        nodes = [node("Relu", f"x{i}" if i else "x", f"x{i + 1}") for i in range(count)]
        onnx.save(model(*nodes, node("Relu", f"x{count}", "y")), path)
        return lambda: onnx_model.read_records(str(path), {})

    assert_in_proportion(read, 8_000)
    names = [record["name"] for record in onnx_model.read_records(str(path), {})]
    assert names == ["Relu", *(f"Relu_{i}" for i in range(1, 8_001))]


def test_scopes_that_are_too_deep_are_passed_over() -> None:
    scopes = "[" * 5000 + "]" * 5000
    with pytest.raises((RecursionError, MemoryError, SyntaxError)):
        ast.literal_eval(scopes)
    found = helper.make_node("Relu", ["x"], ["y"], name="a/b")
    helper.set_model_props(found, {"pkg.torch.onnx.name_scopes": scopes})
    assert onnx_model._module(found) == "a"
