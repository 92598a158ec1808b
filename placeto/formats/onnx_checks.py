"""Checks of an ONNX model before its shapes are inferred, since ONNX's shape inference trusts the file.

A tensor of a thousand million elements without data, or a Split into as many parts, takes the inference gigabytes. If
it reads inputs, outputs or attributes that a node lacks, it reads beyond the ends of its arrays.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from placeto.problem.graph import GraphError
from placeto.problem.messages import quote

if TYPE_CHECKING:
    import onnx

MOST_ELEMENTS = 2**58
"""Most elements of a tensor, so that the number of its bytes is an int64."""
SMALL = 1024
"""Most elements of a constant that shapes may depend on."""
_MOST_RANK = 64
_MOST_NODES = 1_000_000
_CLUE = 200  # characters of another program's message that are quoted
_ONNX = "", "ai.onnx"  # the names of ONNX's own domain
_DATA = "raw_data", "float_data", "int32_data", "int64_data", "double_data", "uint64_data", "string_data"


def check_model(model: onnx.ModelProto) -> None:
    """Refuse a model with impossible sizes, with a node before one that it reads from, or with an invalid node.

    A dimension of -1, as some exporters write it, becomes one without a value.

    Raises:
        GraphError: about the first of these; the message names the tensor or the node.
    """
    graph = model.graph
    for value in (*graph.input, *graph.output, *graph.value_info):
        _check_value(value)
    _check_order(graph)
    for tensor in _tensors(graph):
        _check_tensor(tensor)
    versions = {"" if opset.domain == "ai.onnx" else opset.domain: opset.version for opset in model.opset_import}
    for node in _nodes(graph.node):
        _check_node(node, versions)


def check_functions(model: onnx.ModelProto) -> None:
    """Refuse local functions that call themselves, and a model of more than `_MOST_NODES` nodes when all are inlined.

    Raises:
        GraphError: about the first of these.
    """
    functions = {(found.domain, found.name): found for found in model.functions}
    calls = {key: [(node.domain, node.op_type) for node in _nodes(found.node)] for key, found in functions.items()}
    sizes: dict[tuple[str, str], int] = {}
    try:
        for key in TopologicalSorter(calls).static_order():
            sizes[key] = sum(sizes[call] for call in calls[key]) if key in calls else 1
    except CycleError as cycle:
        raise GraphError(f"function {quote(cycle.args[1][0][1])} calls itself") from None
    if sum(sizes.get((node.domain, node.op_type), 1) for node in _nodes(model.graph.node)) > _MOST_NODES:
        raise GraphError(f"its functions make more than {_MOST_NODES} nodes")


def with_one_opset(model: onnx.ModelProto) -> None:
    """Give each function of another opset the opset of the model, if all its ops are the same in both opsets.

    The model also gets the opsets of those domains that only functions name.
    """
    from onnx import defs

    def since(node: onnx.NodeProto, opset: int) -> int:
        try:
            return int(defs.get_schema(node.op_type, opset, "").since_version)
        except defs.SchemaError:
            return -opset

    own = next((opset.version for opset in model.opset_import if opset.domain in _ONNX), 0)
    for function in model.functions:
        nodes = [node for node in _nodes(function.node) if node.domain in _ONNX]
        for opset in (opset for opset in function.opset_import if opset.domain in _ONNX):
            if own and all(since(node, opset.version) == since(node, own) for node in nodes):
                opset.version = own
    named = {opset.domain for opset in model.opset_import}
    others = {opset.domain: opset for function in model.functions for opset in function.opset_import}
    model.opset_import.extend(opset for domain, opset in others.items() if domain not in named | set(_ONNX))


def check_inlined(model: onnx.ModelProto) -> None:
    """Refuse calls of local functions that onnx's inliner has left, since the ops of such a function would be missing.

    Raises:
        GraphError: about the first of these.
    """
    functions = {(found.domain, found.name) for found in model.functions}
    for node in _nodes(model.graph.node):
        if (node.domain, node.op_type) in functions:
            advice = "convert the model to one opset, by onnx.version_converter"
            raise GraphError(f"{title(node)}: its function {quote(node.op_type)} is of another opset; {advice}")


def one_line(text: str) -> str:
    """Return another program's message as ours quote it: in one line, printable, at most 200 characters long."""
    shown = repr(" ".join(text.split()))[1:-1]
    return shown if len(shown) <= _CLUE else f"{shown[: _CLUE - 3]}..."


def title(node: onnx.NodeProto) -> str:
    """Return what messages call a node: its name, or its type if it has no name."""
    return f"node {quote(node.name or node.op_type)}"


def check_shape(dims: tuple[int, ...], what: str) -> None:
    """Refuse a shape of more than 64 dimensions, with a negative one, or of more elements than `MOST_ELEMENTS`.

    Raises:
        GraphError: the shape is refused; the message begins with `what`.
    """
    if len(dims) > _MOST_RANK:
        raise GraphError(f"{what} has {len(dims)} dimensions, more than {_MOST_RANK}")
    if any(size < 0 for size in dims):
        raise GraphError(f"{what} has a dimension of {min(dims)}")
    if prod(size for size in dims if size) > MOST_ELEMENTS:
        raise GraphError(f"{what} has a shape of more than 2^58 elements: {quote(list(dims))}")


def drop_weights(graph: onnx.GraphProto) -> None:
    """Delete the values of tensors of more than `SMALL` elements: no shape depends on them."""
    for tensor in _tensors(graph):
        if prod(tensor.dims) > SMALL:
            for field in _DATA:
                tensor.ClearField(field)


def read_external(graph: onnx.GraphProto, folder: Path) -> None:
    """Read the small tensors of integers that are stored in other files below `folder`: shapes may depend on them.

    A tensor that can't be read stays without values.
    """
    from onnx import helper

    for tensor in graph.initializer:
        if tensor.data_location != tensor.EXTERNAL or prod(tensor.dims) > SMALL:
            continue
        kind = helper.tensor_dtype_to_np_dtype(tensor.data_type)
        if kind.kind not in "iub":
            continue
        entries = {entry.key: entry.value for entry in tensor.external_data}
        size = prod(tensor.dims) * kind.itemsize
        try:
            path = (folder / entries["location"]).resolve(strict=True)
            if not path.is_file() or not path.is_relative_to(folder.resolve()):
                continue
            with path.open("rb") as file:
                file.seek(int(entries.get("offset", 0)))
                data = file.read(size)
        except (OSError, LookupError, ValueError, OverflowError):
            continue
        if len(data) == size:
            tensor.raw_data = data
            tensor.data_location = tensor.DEFAULT
            del tensor.external_data[:]


def _check_value(value: onnx.ValueInfoProto) -> None:
    dims = value.type.tensor_type.shape.dim
    for dim in dims:
        if dim.HasField("dim_value") and dim.dim_value == -1:
            dim.Clear()
    check_shape(tuple(dim.dim_value for dim in dims if dim.HasField("dim_value")), f"tensor {quote(value.name)}")


def _check_order(graph: onnx.GraphProto) -> None:
    """Refuse a tensor that is made twice, or that is not made before it is read; refuse sparse weights as well."""
    if graph.sparse_initializer:
        name = graph.sparse_initializer[0].values.name
        raise GraphError(f"weight {quote(name)} is sparse, which can't be imported: make it dense")
    known = {value.name for value in graph.input}
    stored: set[str] = set()
    for tensor in graph.initializer:
        if tensor.name in stored:
            raise GraphError(f"there are two weights {quote(tensor.name)}")
        stored.add(tensor.name)
    known |= stored
    for node in graph.node:
        for name in node.input:
            if name and name not in known:
                raise GraphError(f"{title(node)}: nothing before it makes {quote(name)}, which it reads")
        for name in node.output:
            if name in known:
                raise GraphError(f"{title(node)}: {quote(name)} is made twice")
            if name:
                known.add(name)
    for value in graph.output:
        if value.name not in known:
            raise GraphError(f"nothing makes {quote(value.name)}, an output of the model")


def _check_node(node: onnx.NodeProto, versions: Mapping[str, int]) -> None:
    """Refuse a node without the inputs, outputs or attributes of its type: the inference reads them unchecked."""
    from onnx import defs

    found = {attribute.name: attribute for attribute in node.attribute}
    if "sparse_value" in found:
        raise GraphError(f"{title(node)}: a sparse constant can't be imported: make it dense")
    if node.op_type == "Split" and "num_outputs" in found and found["num_outputs"].i != len(node.output):
        parts = found["num_outputs"].i
        raise GraphError(f"{title(node)}: num_outputs is {parts}, but it has {len(node.output)} outputs")
    domain = "" if node.domain == "ai.onnx" else node.domain
    try:
        schema = defs.get_schema(node.op_type, versions.get(domain, 0), domain)
    except defs.SchemaError:  # an op of a domain that isn't ONNX's
        return
    for names, least, most, what in (
        (node.input, schema.min_input, schema.max_input, "inputs"),
        (node.output, schema.min_output, schema.max_output, "outputs"),
    ):
        count = max((i + 1 for i, name in enumerate(names) if name), default=0)
        if not least <= len(names) or count > most:
            bounds = str(least) if least == most else f"at least {least}" if most >= 2**31 - 1 else f"{least} to {most}"
            raise GraphError(f"{title(node)}: {node.op_type} has {bounds} {what}, not {count}")
    for name, expected in schema.attributes.items():
        if name not in found:
            if expected.required:
                raise GraphError(f"{title(node)}: the attribute {quote(name)} of {node.op_type} is missing")
            continue
        kind: Any = expected.type  # of a class that onnx's stubs leave empty
        if not found[name].ref_attr_name and found[name].type != kind.value:
            raise GraphError(f"{title(node)}: the attribute {quote(name)} must be of type {kind.name}")


def _graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """Yield a graph and, at any depth, the graphs inside its nodes."""
    stack = [graph]
    while stack:
        graph = stack.pop()
        yield graph
        for node in graph.node:
            stack += _inner(node)


def _inner(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """Yield the graphs directly inside a node."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def _nodes(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """Yield nodes and, at any depth, the nodes of the graphs inside them."""
    for node in nodes:
        yield node
        for graph in _inner(node):
            for inner in _graphs(graph):
                yield from inner.node


def _tensors(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    """Yield all tensors that hold values: initializers and attributes, of graphs inside nodes as well."""
    for inner in _graphs(graph):
        yield from inner.initializer
        for node in inner.node:
            for attribute in node.attribute:
                if attribute.HasField("t"):
                    yield attribute.t
                yield from attribute.tensors


def _check_tensor(tensor: onnx.TensorProto) -> None:
    what = f"tensor {quote(tensor.name)}"
    check_shape(tuple(tensor.dims), what)
    kinds = tensor.DataType
    if tensor.data_type not in kinds.values() or tensor.data_type == tensor.UNDEFINED:
        raise GraphError(f"{what} has no known dtype: {tensor.data_type}")
    if tensor.HasField("segment"):
        raise GraphError(f"{what} is a segment of a tensor, which can't be imported")
    if tensor.data_location == tensor.EXTERNAL:
        return
    name, elements = kinds.Name(tensor.data_type), prod(tensor.dims)
    field, expected = _stored(name, elements)
    if tensor.HasField("raw_data") and tensor.data_type != tensor.STRING:
        field, expected = "raw_data", _raw_bytes(tensor.data_type, name, elements)
    found = len(getattr(tensor, field))
    if found != expected:
        values = "bytes" if field == "raw_data" else "values"
        raise GraphError(f"{what} of shape {quote(list(tensor.dims))} has {found} {values} in {field}, not {expected}")


def _raw_bytes(data_type: int, name: str, elements: int) -> int:
    from onnx import helper

    bits = packed_bits(name) or int(helper.tensor_dtype_to_np_dtype(data_type).itemsize) * 8
    return -(-elements * bits // 8)


def _stored(name: str, elements: int) -> tuple[str, int]:
    """Return the field with the values of a tensor that has no raw data, and how many values it must have there."""
    if name in ("FLOAT", "COMPLEX64"):
        return "float_data", elements * (1 + (name == "COMPLEX64"))
    if name in ("DOUBLE", "COMPLEX128"):
        return "double_data", elements * (1 + (name == "COMPLEX128"))
    if name in ("UINT32", "UINT64"):
        return "uint64_data", elements
    if name in ("INT64", "STRING"):
        return f"{name.lower()}_data", elements
    bits = packed_bits(name)
    return "int32_data", -(-elements * bits // 8) if bits else elements


def packed_bits(name: str) -> int:
    """Return the bits of an element of a dtype of which several share a byte; 0 for all other dtypes."""
    return {"UINT4": 4, "INT4": 4, "FLOAT4E2M1": 4, "UINT2": 2, "INT2": 2}.get(name, 0)
