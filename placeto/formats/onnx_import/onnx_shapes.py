"""Shapes of all tensors of an ONNX model, once its symbolic dimensions have values."""

from __future__ import annotations

import shlex
from collections import ChainMap
from collections.abc import Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from placeto.errors import GraphError
from placeto.formats.onnx_import.onnx_checks import SMALL, check_shape, one_line
from placeto.plumbing.terminal import printable
from placeto.problem.messages import quote

if TYPE_CHECKING:
    import onnx

# Ops whose outputs have a size that depends on the values of their inputs.
_GROWING = {"Range", "Tile", "Expand", "ConstantOfShape", "OneHot", "Pad", "Resize", "Upsample", "EyeLike"}
_LISTED = 4  # dimensions in a message
_UNKNOWN = "expected to have type but instead is null"


def bind(graph: onnx.GraphProto, dimensions: Mapping[str, int]) -> None:
    """Give the symbolic dimensions of all tensors their values, in place; one of -1 has no name.

    Dimensions of tensors that aren't inputs may stay without a value: they are inferred later.

    Raises:
        GraphError: an input's dimension has no value, a value isn't from 1 to 2^58 - 1, or no input has a dimension of
            that name.
    """
    names: dict[str, None] = {}
    inputs = len(graph.input)
    for number, value in enumerate((*graph.input, *graph.value_info)):
        for axis, dimension in enumerate(value.type.tensor_type.shape.dim):
            if dimension.HasField("dim_value") and dimension.dim_value != -1:  # as some exporters write an unknown one
                continue
            symbol = dimension.dim_param or f"{value.name}.{axis}"
            dimension.Clear()  # dimensions of tensors that aren't inputs are inferred
            if 1 <= dimensions.get(symbol, 0) < 2**58:
                dimension.dim_value = dimensions[symbol]
            if number < inputs:
                names[symbol] = None
    for symbol, size in dimensions.items():
        if symbol not in names:
            valid = f"they are {_listed(names)}" if names else "all its dimensions are numbers"
            raise GraphError(f"there is no dimension {quote(symbol)}; {valid}")
        if not 1 <= size < 2**58:
            bound = "at least 1" if size < 1 else "below 2^58"
            raise GraphError(f"dimension {quote(symbol)} must be {bound}, not {size}")
    missing = [symbol for symbol in names if symbol not in dimensions]
    if missing:
        options = " ".join(f"--dim {printable(shlex.quote(symbol))[:40]}=8" for symbol in missing[:_LISTED])
        plural = "s have no values" if len(missing) > 1 else " has no value"
        raise GraphError(f"the dimension{plural}: {_listed(missing)}; placeto capture takes them, as in {options}")


def _listed(names: Sequence[str] | Mapping[str, Any]) -> str:
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return ", ".join(map(quote, list(names)[:_LISTED])) + more


def with_shapes(model: onnx.ModelProto) -> tuple[onnx.ModelProto, set[str]]:
    """Return the model with all shapes that can be inferred, and the names of the small tensors computed for that.

    Tensors that depend on nothing but shapes and constants are computed and become initializers: in exported models,
    the shape that a Reshape reads is often such a tensor.

    Raises:
        GraphError: shapes contradict each other.
    """
    from onnx import numpy_helper

    values = {each.name: numpy_helper.to_array(each) for each in model.graph.initializer}
    stored = set(values)
    while True:
        model = _inferred(model)
        fresh = _computed(model, values)
        if not fresh:
            return model, set(values) - stored
        values |= fresh


def shapes_of(graph: onnx.GraphProto) -> dict[str, tuple[tuple[int, ...], int]]:
    """Name of a tensor -> its shape and the number of its dtype, for all tensors whose shapes are known.

    Raises:
        GraphError: a shape isn't possible; see `check_shape`.
    """
    shapes = {}
    for value in (*graph.value_info, *graph.output, *graph.input):
        kind = value.type.tensor_type
        if kind.HasField("shape") and all(d.HasField("dim_value") for d in kind.shape.dim):
            shape = tuple(d.dim_value for d in kind.shape.dim)
            check_shape(shape, f"tensor {quote(value.name)}")
            shapes[value.name] = shape, kind.elem_type
    return shapes


def _inferred(model: onnx.ModelProto) -> onnx.ModelProto:
    from onnx.shape_inference import InferenceError, infer_shapes

    try:
        return infer_shapes(model, strict_mode=True, data_prop=True)
    except InferenceError as problem:
        lines = [line.strip() for line in str(problem).splitlines() if line.strip()]
    contradictions = [line for line in lines if _UNKNOWN not in line]
    if contradictions:
        raise GraphError(f"shapes can't be inferred: {one_line(contradictions[-1])}")
    return infer_shapes(model, data_prop=True)  # some shapes aren't known: the importer's message names the first one


def _computed(model: onnx.ModelProto, values: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Compute the nodes whose inputs are known, replace them by initializers, and return their outputs by name."""
    from onnx import numpy_helper

    graph, shapes = model.graph, shapes_of(model.graph)
    versions = {opset.domain: opset.version for opset in model.opset_import}
    fresh: dict[str, np.ndarray] = {}
    known = ChainMap(fresh, dict(values))
    nodes = []
    for node in graph.node:
        outputs = _values(node, known, shapes, versions)
        if outputs is None:
            nodes.append(node)
        else:
            fresh |= outputs
    if fresh:
        del graph.node[:]
        graph.node.extend(nodes)
        graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in fresh.items())
    return fresh


def integer_of(graph: onnx.GraphProto, name: str) -> int:
    """Return the integer that a constant tensor of one element holds.

    Raises:
        GraphError: the tensor isn't a constant of one element.
    """
    from onnx import numpy_helper

    for tensor in graph.initializer:
        if tensor.name == name and prod(tensor.dims) == 1:
            return int(numpy_helper.to_array(tensor).reshape(()))
    raise GraphError(f"{quote(name)} must be a constant: the shapes and the work depend on it")


def _values(
    node: onnx.NodeProto, values: Mapping[str, np.ndarray], shapes: Mapping[str, Any], versions: dict[str, int]
) -> dict[str, np.ndarray] | None:
    """Return the outputs of a node by name; None if an input isn't known, or if an output isn't small or computable."""
    from onnx import helper
    from onnx.reference import ReferenceEvaluator

    inputs = [name for name in node.input if name]
    if not inputs and node.op_type != "Constant":  # random numbers
        return None
    if node.op_type in ("Shape", "Size"):
        values = {name: np.broadcast_to(np.int8(0), shapes[name][0]) for name in inputs if name in shapes}
    if any(name not in values or _is_weight(values[name]) for name in inputs):
        return None
    if node.op_type in _GROWING and node.output[0] not in shapes:
        return None
    if any(prod(shapes.get(name, ((),))[0]) > SMALL for name in node.output):
        return None
    attributes = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
    try:
        results: Any
        if node.op_type == "Unsqueeze" and "axes" in attributes:  # before opset 13; the reference has it only since
            results = [np.expand_dims(values[inputs[0]], tuple(attributes["axes"]))]
        else:
            results = ReferenceEvaluator(node, opsets=versions).run(None, {name: values[name] for name in inputs})
    except Exception:  # an op that the reference doesn't have: its shape may be inferred all the same
        return None
    outputs = {name: np.asarray(value) for name, value in zip(node.output, results, strict=False) if name}
    return outputs if all(value.size <= SMALL for value in outputs.values()) else None


def _is_weight(value: np.ndarray) -> bool:
    return value.size > 1 and value.dtype.kind not in "iub"
