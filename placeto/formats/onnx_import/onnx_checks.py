"""What happens to an ONNX model before ONNX checks it and infers its shapes: its functions and its weights go.

ONNX's checker looks at nodes, at their attributes and at their order. What it doesn't look at is checked here: whether
tensors have as many values as their shapes say, and whether their bytes can be counted.
"""

from __future__ import annotations

from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

from placeto.errors import GraphError
from placeto.problem.messages import quote

if TYPE_CHECKING:
    import onnx

SMALL = 1024
"""Most elements of a constant that shapes may depend on."""
OWN = "", "ai.onnx"
"""The names of ONNX's own domain."""
_MOST_ELEMENTS = 2**58  # of a tensor, so that the number of its bytes is an int64
_MOST_RANK = 64
_CLUE = 200  # characters of another program's message that are quoted


def one_line(text: str) -> str:
    """Return another program's message as ours quote it: in one line, printable, at most 200 characters long."""
    shown = repr(" ".join(text.split()))[1:-1]
    return shown if len(shown) <= _CLUE else f"{shown[: _CLUE - 3]}..."


def title(node: onnx.NodeProto) -> str:
    """Return what messages call a node: its name, or its type if it has no name."""
    return f"node {quote(node.name or node.op_type)}"


def check_shape(dims: tuple[int, ...], label: str) -> None:
    """Refuse a shape of more than 64 dimensions, with a negative one, or of more than 2^58 elements.

    Raises:
        GraphError: the shape is refused; the message begins with `label`.
    """
    if len(dims) > _MOST_RANK:
        raise GraphError(f"{label} has {len(dims)} dimensions, more than {_MOST_RANK}")
    if any(size < 0 for size in dims):
        raise GraphError(f"{label} has a dimension of {min(dims)}")
    if prod(size for size in dims if size) > _MOST_ELEMENTS:
        raise GraphError(f"{label} has a shape of more than 2^58 elements: {quote(list(dims))}")


def without_functions(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with its local functions replaced by their bodies.

    A function of another opset gets the opset of the model if all its ops are the same in both opsets. The model also
    gets the opsets of those domains that only functions name.

    Raises:
        GraphError: functions call themselves, or are of another opset to which ONNX can't convert them.
    """
    from onnx import checker, defs, inliner

    def since(node: onnx.NodeProto, opset: int) -> int:
        try:
            return int(defs.get_schema(node.op_type, opset, "").since_version)
        except defs.SchemaError:
            return -opset

    if not model.functions:
        return model
    model_opset = next((opset.version for opset in model.opset_import if opset.domain in OWN), 0)
    for function in model.functions:
        nodes = [node for node in function.node if node.domain in OWN]
        for opset in (opset for opset in function.opset_import if opset.domain in OWN):
            if model_opset and all(since(node, opset.version) == since(node, model_opset) for node in nodes):
                opset.version = model_opset
    named = {opset.domain for opset in model.opset_import}
    others = {opset.domain: opset for function in model.functions for opset in function.opset_import}
    model.opset_import.extend(opset for domain, opset in others.items() if domain not in named | set(OWN))
    advice = "convert the model to one opset, by onnx.version_converter"
    try:
        return inliner.inline_local_functions(model, convert_version=True)
    except (checker.ValidationError, RuntimeError) as problem:
        raise GraphError(
            f"its functions can't be replaced by their bodies ({one_line(str(problem))}): {advice}"
        ) from None


def take_weights(graph: onnx.GraphProto, folder: Path) -> dict[str, tuple[tuple[int, ...], int]]:
    """Take the tensors on which no shape depends from a graph; return their shapes and the numbers of their dtypes.

    These are tensors of more than `SMALL` elements, and those that can't be read from a file below `folder`. They
    become inputs. The other tensors become weights of the graph, also those that nodes of type Constant have.

    Raises:
        GraphError: a tensor is sparse, has the name of another one, or has other values than its shape says.
    """
    from onnx import helper

    for sparse in graph.sparse_initializer:
        raise GraphError(f"weight {quote(sparse.values.name)} is sparse, which can't be imported: make it dense")
    tensors, nodes = list(graph.initializer), []
    for node in graph.node:
        constant = _constant(node)
        if constant is None:
            nodes.append(node)
        else:
            tensors.append(constant)
    small: dict[str, onnx.TensorProto] = {}
    large: dict[str, tuple[tuple[int, ...], int]] = {}
    for tensor in tensors:
        if tensor.name in small or tensor.name in large:
            raise GraphError(f"there are two weights {quote(tensor.name)}")
        if _has_small_values(tensor, folder):
            small[tensor.name] = tensor
        else:
            large[tensor.name] = tuple(tensor.dims), tensor.data_type
    inputs = [value for value in graph.input if value.name not in large and value.name not in small]
    inputs += [helper.make_tensor_value_info(name, dtype, shape) for name, (shape, dtype) in large.items()]
    for field, content in ((graph.initializer, small.values()), (graph.node, nodes), (graph.input, inputs)):
        del field[:]
        field.extend(content)
    return large


def _constant(node: onnx.NodeProto) -> onnx.TensorProto | None:
    """Return the tensor that a node of type Constant has, by the name of its output; None if it has another value."""
    if node.op_type != "Constant" or node.input or len(node.output) != 1 or len(node.attribute) != 1:
        return None
    (attribute,) = node.attribute
    if attribute.name == "sparse_value":
        raise GraphError(f"{title(node)}: a sparse constant can't be imported: make it dense")
    if node.domain not in OWN or attribute.name != "value" or attribute.type != attribute.TENSOR:
        return None
    attribute.t.name = node.output[0]
    return attribute.t


def _has_small_values(tensor: onnx.TensorProto, folder: Path) -> bool:
    """Whether a tensor is small and has its values, which may be read from a file below `folder`.

    Raises:
        GraphError: it has other values than its shape and its dtype say.
    """
    from onnx import numpy_helper

    label = f"weight {quote(tensor.name)}"
    check_shape(tuple(tensor.dims), label)
    small = prod(tensor.dims) <= SMALL
    if tensor.data_location == tensor.EXTERNAL:
        return small and _read_values(tensor, folder)
    try:
        numpy_helper.to_array(tensor)
    except (LookupError, TypeError, ValueError) as problem:
        clue = one_line(str(problem))
        raise GraphError(f"{label} has other values than its shape and its dtype say ({clue})") from None
    return small


def _read_values(tensor: onnx.TensorProto, folder: Path) -> bool:
    """Read the values of a tensor from a file below `folder`; return whether they could be read."""
    from onnx import external_data_helper, numpy_helper

    try:
        external_data_helper.load_external_data_for_tensor(tensor, str(folder))
        tensor.data_location = tensor.DEFAULT
        del tensor.external_data[:]
        numpy_helper.to_array(tensor)
    except Exception:  # no such file, one of another folder or length, or anything that onnx finds wrong
        return False
    return True
