"""ONNX models, made by hand and by PyTorch: FLOPs and bytes are those of the captured module."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from placeto.capture import capture_inference
from placeto.errors import GraphError
from placeto.formats.importers import IMPORTERS, find_importer
from placeto.formats.onnx_import.onnx_model import load, load_here
from placeto.problem.graph import ComputationGraph
from tests.captures import record

onnx = pytest.importorskip("onnx")
helper, FLOAT = onnx.helper, onnx.TensorProto.FLOAT


def weight(name: str, *shape: int, dtype: int = FLOAT) -> object:
    size = int(np.prod(shape)) * helper.tensor_dtype_to_np_dtype(dtype).itemsize
    return helper.make_tensor(name, dtype, shape, bytes(size), raw=True)


def integers(name: str, *values: int) -> object:
    return helper.make_tensor(name, onnx.TensorProto.INT64, [len(values)], values)


def written(folder: Path, nodes: list, inputs: dict, outputs: dict, weights: tuple = (), dtype: int = FLOAT) -> Path:
    def infos(shapes: dict) -> list:
        return [helper.make_tensor_value_info(name, dtype, shape) for name, shape in shapes.items()]

    graph = helper.make_graph(nodes, "g", infos(inputs), infos(outputs), list(weights))
    onnx.save(helper.make_model(graph), folder / "model.onnx")
    return folder / "model.onnx"


def convnet(folder: Path) -> Path:
    """What comes of the sizes is found by ops, as exporters write it."""
    nodes = [
        helper.make_node("Conv", ["x", "0.weight", "0.bias"], ["a"], name="/0/Conv", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["a"], ["b"], name="/1/Relu"),
        helper.make_node("Conv", ["b", "2.weight"], ["c"], name="/2/Conv", group=8),
        helper.make_node("Shape", ["c"], ["shape"]),
        helper.make_node("Gather", ["shape", "zero"], ["batch"]),
        helper.make_node("Concat", ["batch", "rest"], ["flat"], axis=0),
        helper.make_node("Reshape", ["c", "flat"], ["d"]),
        helper.make_node("Gemm", ["d", "4.weight", "4.bias"], ["y"], name="/4/Gemm", transB=1),
    ]
    sizes = {"0.weight": (8, 3, 3, 3), "0.bias": (8,), "2.weight": (8, 1, 3, 3), "4.weight": (5, 288), "4.bias": (5,)}
    weights = *(weight(name, *shape) for name, shape in sizes.items()), integers("zero", 0), integers("rest", -1)
    return written(folder, nodes, {"x": ["batch", 3, 8, "width"]}, {"y": ["batch", 5]}, weights)


def parameters(graph: ComputationGraph) -> dict[str, int]:
    return {op: int(graph.param_bytes[i]) for op, i in graph.index.items() if graph.op_types[i] == "parameter"}


def test_graph_is_that_of_the_captured_module(tmp_path: Path) -> None:
    module = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, groups=8, bias=False), nn.Flatten(),
        nn.Linear(8 * 36, 5),
    )  # fmt: skip
    captured = capture_inference(module, [torch.zeros(2, 3, 8, 8)])
    graph = load_here(convnet(tmp_path), {"batch": 2, "width": 8})
    assert graph.flops.sum() == captured.flops.sum()
    assert parameters(graph) == parameters(captured)
    assert (graph.mode, graph.name) == ("inference", "model")
    ops = [op for op in graph.op_names if op not in parameters(graph)]
    assert ops == ["0/Conv", "1/Relu", "2/Conv", "4/Gemm"], "shapes and views are no ops"
    last, conv = record(graph, "4/Gemm"), record(graph, "2/Conv")
    assert last["inputs"] == [["2/Conv", 0], ["4.weight", 0], ["4.bias", 0]]
    assert last["bytes_accessed"] == 4 * (2 * 288 + 5 * 288 + 5 + 2 * 5)
    assert (conv["kernel"], conv["module"], conv["outputs"]) == ("depthwise", "2", [2 * 8 * 36 * 4])
    assert conv["colocation"] == record(graph, "2.weight")["colocation"] != last["colocation"]


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({}, "the dimensions have no values: 'batch', 'width'; .*--dim batch=8 --dim width=8"),
        ({"batch": 2}, "the dimension has no value: 'width'"),
        ({"batch": 2, "width": 8, "height": 8}, "no dimension 'height'; they are 'batch', 'width'"),
        ({"batch": 0, "width": 8}, "dimension 'batch' must be at least 1, not 0"),
        ({"batch": 2, "width": 9}, "shapes can't be inferred"),
    ],
)
def test_dimensions_must_have_values(tmp_path: Path, sizes: dict[str, int], message: str) -> None:
    with pytest.raises(GraphError, match=f"model.onnx: .*{message}"):
        load_here(convnet(tmp_path), sizes)


@pytest.mark.parametrize(("axis", "length"), [(None, 4), (1, 8), (2, 4), (-3, 8), (0, 3)])
@pytest.mark.parametrize("node", [True, False])
def test_the_axis_of_a_transform_may_be_an_input(tmp_path: Path, axis: int | None, length: int, node: bool) -> None:
    """It is one since opset 20; without it, it is the last but one."""
    shape, out = [3, 8, 4, 1], [3, 8, 4, 2]
    stored = () if axis is None or node else (helper.make_tensor("axis", onnx.TensorProto.INT64, [], [axis]),)
    nodes = [] if axis is None or not node else [helper.make_node("Constant", [], ["axis"], value_int=axis)]
    nodes.append(helper.make_node("DFT", ["x"] if axis is None else ["x", "", "axis"], ["y"]))
    graph = load_here(written(tmp_path, nodes, {"x": shape}, {"y": out}, stored))
    assert graph.flops.sum() == round(2.5 * 3 * 8 * 4 * np.log2(length))


def test_the_axis_of_a_transform_must_be_known(tmp_path: Path) -> None:
    nodes = [helper.make_node("Cast", ["z"], ["axis"], to=onnx.TensorProto.INT64)]
    nodes.append(helper.make_node("DFT", ["x", "", "axis"], ["y"]))
    with pytest.raises(GraphError, match="'axis' must be a constant: the shapes and the work depend on it"):
        load_here(written(tmp_path, nodes, {"x": [3, 8, 4, 1], "z": []}, {"y": [3, 8, 4, 2]}))


def test_dtypes(tmp_path: Path) -> None:
    half = onnx.TensorProto.FLOAT16
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    graph = load_here(
        written(tmp_path, nodes, {"x": [2, 4]}, {"y": [2, 3]}, (weight("w", 4, 3, dtype=half),), dtype=half)
    )
    assert (graph.dtypes[-1], parameters(graph)) == ("float16", {"w": 24})


def test_constants_may_be_nodes(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Constant", [], ["w"], value=weight("w", 4, 3)),
        helper.make_node("Constant", [], ["half"], value=helper.make_tensor("half", FLOAT, [], [0.5])),
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("Mul", ["a", "half"], ["y"]),
    ]
    graph = load_here(written(tmp_path, nodes, {"x": [2, 4]}, {"y": [2, 3]}))
    assert graph.op_names == ("w", "MatMul", "Mul")
    assert record(graph, "Mul")["inputs"] == [["MatMul", 0]]


def test_sizes_are_found_in_old_opsets_too(tmp_path: Path) -> None:
    """The state at the beginning of an LSTM, as exporters write it up to opset 12."""
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Gather", ["shape", "number"], ["batch"]),
        helper.make_node("Unsqueeze", ["batch"], ["sizes"], axes=[0]),
        helper.make_node("Concat", ["one", "sizes", "width"], ["whole"], axis=0),
        helper.make_node("ConstantOfShape", ["whole"], ["state"]),
        helper.make_node("LSTM", ["x", "w", "r", "", "", "state", "state"], ["y"], hidden_size=6),
    ]
    number = helper.make_tensor("number", onnx.TensorProto.INT64, [], [1])
    weights = weight("w", 1, 24, 4), weight("r", 1, 24, 6), integers("one", 1), integers("width", 6), number
    path = written(tmp_path, nodes, {"x": [7, 2, 4]}, {"y": [7, 1, 2, 6]}, weights)
    model = onnx.load(path)
    model.opset_import[0].version = 11
    onnx.save(model, path)
    graph = load_here(path)
    assert graph.op_names == ("w", "r", "LSTM")
    assert graph.flops.sum() == 2 * 7 * 2 * 24 * (4 + 6)


def test_weights_get_their_shape_before_anything_runs(tmp_path: Path) -> None:
    """As exporters write tied weights, and weights that are transposed: no op, and one parameter."""
    nodes = [
        helper.make_node("Identity", ["w"], ["same"]),
        helper.make_node("Reshape", ["same", "flat"], ["square"]),
        helper.make_node("Transpose", ["w"], ["turned"], perm=[1, 0]),
        helper.make_node("MatMul", ["x", "square"], ["a"], name="one"),
        helper.make_node("MatMul", ["a", "turned"], ["b"], name="two"),
        helper.make_node("Add", ["b", "b"], ["c"]),
        helper.make_node("Transpose", ["c"], ["y"], perm=[1, 0]),
    ]
    weights = weight("w", 5, 5), integers("flat", 5, 5)
    graph = load_here(written(tmp_path, nodes, {"x": [2, 5]}, {"y": [5, 2]}, weights))
    assert graph.op_names == ("w", "one", "two", "Add", "Transpose")
    assert parameters(graph) == {"w": 100}
    assert record(graph, "one")["inputs"] == [["w", 0]]
    assert record(graph, "two")["inputs"] == [["one", 0], ["w", 0]]
    assert graph.bytes_accessed.tolist() == [0, 40 + 100 + 40, 40 + 100 + 40, 40 + 40, 40 + 40]
    assert graph.flops.sum() == 2 * 2 * 2 * 5 * 5


def test_modules_may_stand_in_the_metadata(tmp_path: Path) -> None:
    nodes = [helper.make_node("Relu", ["x"], ["a"], name="one"), helper.make_node("Relu", ["a"], ["y"], name="b/two")]
    for node, scopes in zip(nodes, ("['', 'layers', 'layers.0', 'relu']", "broken"), strict=True):
        helper.set_model_props(node, {"pkg.torch.onnx.name_scopes": scopes})
    assert load_here(written(tmp_path, nodes, {"x": [2]}, {"y": [2]})).modules == ("layers.0", "b")


def test_weights_of_old_files_need_not_be_inputs(tmp_path: Path) -> None:
    """Before version 4 of the format they had to be, but some files leave them out."""
    node = helper.make_node("Conv", ["x", "w"], ["y"], pads=[1, 1])
    model = onnx.load(written(tmp_path, [node], {"x": [2, 4, 10]}, {"y": None}, (weight("w", 6, 4, 3),)))
    model.ir_version = 3
    onnx.save(model, tmp_path / "model.onnx")
    assert load_here(tmp_path / "model.onnx").flops.sum() == 2 * 2 * 6 * 10 * 4 * 3


def test_channels_must_be_those_of_the_weight(tmp_path: Path) -> None:
    node, weights = helper.make_node("Conv", ["x", "w"], ["y"], group=3), (weight("w", 6, 2, 3, 3),)
    path = written(tmp_path, [node], {"x": [1, 4, 6, 6]}, {"y": None}, weights)
    with pytest.raises(
        GraphError, match=r"node 'Conv': not as .* \(ValueError: 4 channels in, but 3 x 2 in its weight\)"
    ):
        load_here(path)


def test_other_files_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "model.onnx"
    assert find_importer(path) is IMPORTERS["onnx"]
    for content in (b"", b"hello, world", b"\x08\x07"):
        path.write_bytes(content)
        with pytest.raises(GraphError, match=r"model\.onnx: not an ONNX file"):
            load(path)
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(GraphError, match=r"takes the package onnx: pip install 'placeto\[onnx\]'"):
        load(path)


@pytest.mark.filterwarnings("ignore")  # PyTorch deprecates the exporter that needs no further package
def test_what_pytorch_exports(tmp_path: Path) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.layer = nn.Embedding(30, 8), nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)

        def forward(self, words: torch.Tensor) -> torch.Tensor:
            x: torch.Tensor = self.layer(self.embed(words))
            return x.reshape(words.shape[0], -1)

    module, words = Model().train(), torch.zeros(2, 5, dtype=torch.long)  # in training mode it has no fused op
    axes, path = {"words": {0: "batch"}}, tmp_path / "model.onnx"
    mode = torch.onnx.TrainingMode.PRESERVE
    torch.onnx.export(module, (words,), path, input_names=["words"], dynamic_axes=axes, dynamo=False, training=mode)
    graph = load_here(path, {"batch": 3})
    captured = capture_inference(module, [torch.zeros(3, 5, dtype=torch.long)])
    assert graph.flops.sum() == captured.flops.sum()
    assert graph.param_bytes.sum() == captured.param_bytes.sum()
