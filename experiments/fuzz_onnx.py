"""ONNX models, and how they are damaged in structure: any field of any message, by what the format has.

A field is cleared, doubled, exchanged with one of its kind elsewhere in the model, or gets a value that breaks readers.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
from onnx import ModelProto, TensorProto, defs, helper, numpy_helper

_FLOAT, _INT64 = TensorProto.FLOAT, TensorProto.INT64
_OP_TYPES = [*sorted({schema.name for schema in defs.get_all_schemas()}), "", "Mystery", "\x1b[31m", "F", "M" * 10_000]
_INTEGERS = (0, 1, -1, 2, 3, 7, 16, 1000, 10**9, 2**31 - 1, 2**40, 2**62, -(2**63), 2**63 - 1)
_FLOATS = (0.0, -1.0, 0.5, 1e30, float("inf"), float("nan"))
_STRINGS = (
    "",
    "x",
    "y",
    "w",
    "a",
    "me",
    "ij,jk->ik",
    "...i->i",
    "ai.onnx",
    "SAME_UPPER",
    "\x1b[31m",
    "é",
    "z" * 10_000,
)


def _node(kind: str, inputs: str, outputs: str, **attributes: Any) -> Any:
    """A node; a lone dash is an input that is left out."""
    return helper.make_node(kind, [name.strip("-") for name in inputs.split()], outputs.split(), **attributes)


def _weight(name: str, *shape: int) -> Any:
    return numpy_helper.from_array(np.ones(shape, np.float32), name)


def _integers(name: str, *values: int) -> Any:
    return numpy_helper.from_array(np.array(values, np.int64), name)


def _model(
    nodes: list[Any], x: list[int], weights: tuple[Any, ...] = (), opset: int = 18, functions: tuple[Any, ...] = ()
) -> Any:
    """Of x, with an output y whose shape is to be inferred."""
    info = helper.make_tensor_value_info
    graph = helper.make_graph(nodes, "g", [info("x", _FLOAT, x)], [info("y", _FLOAT, None)], list(weights))
    opsets = [helper.make_opsetid("", opset), *([helper.make_opsetid("me", 1)] if functions else [])]
    return helper.make_model(graph, opset_imports=opsets, functions=list(functions), ir_version=10)


def _external() -> Any:
    tensor = TensorProto(name="w", data_type=_FLOAT, dims=[4, 6], data_location=TensorProto.EXTERNAL)
    for key, value in (("location", "w.data"), ("offset", "0"), ("length", "96")):
        entry = tensor.external_data.add()
        entry.key, entry.value = key, value
    return _model([_node("MatMul", "x w", "y")], [3, 4], (tensor,))


def _models() -> Iterator[Any]:
    yield _model(  # what comes of the sizes is found by ops, as exporters write it
        [
            _node("Conv", "x k b", "a", pads=[1, 1, 1, 1], name="/0/Conv"),
            _node("Relu", "a", "r"),
            _node("Conv", "r d", "c", group=4),
            _node("Shape", "c", "shape"),
            _node("Gather", "shape zero", "batch"),
            _node("Concat", "batch rest", "flat", axis=0),
            _node("Reshape", "c flat", "f"),
            _node("Gemm", "f w", "y", transB=1),
        ],
        [2, 3, 6, 6],
        (
            *(_weight("k", 4, 3, 3, 3), _weight("b", 4), _weight("d", 4, 1, 3, 3), _weight("w", 5, 64)),
            *(_integers("zero", 0), _integers("rest", -1)),
        ),
    )
    yield _model(
        [
            _node("Split", "x", "p q", axis=1, num_outputs=2),
            _node("MatMul", "p w", "r"),
            _node("MatMul", "q w", "s"),
            _node("Add", "r s", "t"),
            _node("Softmax", "t", "u", axis=-1),
            _node("Einsum", "u w", "y", equation="ij,jk->ik"),
        ],
        [4, 16],
        (_weight("w", 8, 8),),
    )
    recurrent = _weight("w", 2, 16, 3), _weight("r", 2, 16, 4), _weight("b", 2, 32)
    yield _model(
        [_node("LSTM", "x w r b", "h", hidden_size=4, direction="bidirectional"), _node("Transpose", "h", "y")],
        [7, 2, 3],
        recurrent,
    )
    yield _model(
        [
            _node("Constant", "", "c", value=_weight("c", 4)),
            _node("Constant", "", "n", value_ints=[2, 4, 4]),
            _node("Expand", "x n", "e"),
            _node("Resize", "e - scales", "z", mode="nearest"),
            _node("Pad", "z pads", "p"),
            _node("Slice", "p zero two", "o"),
            _node("Mul", "o c", "y"),
        ],
        [4, 4],
        (_weight("scales", 3), _integers("pads", 0, 0, 0, 0, 0, 0), _integers("zero", 0), _integers("two", 2)),
    )
    inner = [_node("MatMul", "x w", "a"), _node("Relu", "a", "y")]
    function = helper.make_function("me", "F", ["x", "w"], ["y"], inner, [helper.make_opsetid("", 18)])
    yield _model(
        [_node("F", "x w", "a", domain="me"), _node("F", "a v", "y", domain="me")],
        [3, 5],
        (_weight("w", 5, 6), _weight("v", 6, 7)),
        functions=(function,),
    )
    yield _external()
    numbers = [numpy_helper.from_array(np.array(i), name) for name, i in (("zero", 0), ("four", 4), ("one", 1))]
    tiles = [_node("Range", "zero four one", "r"), _node("Gather", "w r", "g"), _node("Tile", "g n", "t")]
    weights = _weight("w", 9, 4), _integers("n", 1, 2), *numbers
    yield _model([*tiles, _node("MatMul", "x t", "y")], [2, 4], weights)
    branch = helper.make_graph([_node("Relu", "x", "z")], "z", [], [helper.make_tensor_value_info("z", _FLOAT, [3])])
    unused = _node("If", "c", "u", then_branch=branch, else_branch=branch)  # what nobody needs may have a flow
    yield _model([unused, _node("Relu", "x", "y")], [3], (numpy_helper.from_array(np.array(True), "c"),))


def to_bytes(model: Any) -> bytes:
    """The model as a file holds it."""
    data: bytes = model.SerializeToString()
    return data


def change_model(model: Any, rng: random.Random) -> None:
    """Change one place of a model."""
    messages = list(_messages(model))
    message = rng.choice(messages)
    fields = list(message.DESCRIPTOR.fields)
    present = [field for field, _ in message.ListFields()]
    field = rng.choice(present if present and rng.random() < 0.8 else fields)
    value = getattr(message, field.name)
    kin = [getattr(other, field.name) for other in messages if other.DESCRIPTOR is message.DESCRIPTOR]
    if rng.random() < 0.15:
        message.ClearField(field.name)
    elif field.is_repeated:
        _change_repeated(value, rng.choice(kin), field, rng)
    elif field.type == field.TYPE_MESSAGE:
        value.CopyFrom(rng.choice(kin))
    else:
        others = kin if rng.random() < 0.3 else _evil(field, message)
        setattr(message, field.name, rng.choice(others))


def _messages(message: Any) -> Iterator[Any]:
    """A message, and all those inside of it."""
    yield message
    for field, value in message.ListFields():
        if field.type == field.TYPE_MESSAGE:
            for inner in value if field.is_repeated else (value,):
                yield from _messages(inner)


def _change_repeated(values: Any, others: Any, field: Any, rng: random.Random) -> None:
    kind = rng.randrange(4)
    items = list(values)
    if kind == 0 and items:
        del values[rng.randrange(len(items))]
        return
    if kind == 1 and len(others):
        items.insert(rng.randrange(len(items) + 1), rng.choice(list(others)))
    elif kind == 2:
        rng.shuffle(items)
    elif field.type == field.TYPE_MESSAGE:
        items += list(others)
    elif items:
        items[rng.randrange(len(items))] = rng.choice(_evil(field, None))
    else:
        items = [rng.choice(_evil(field, None))]
    copies = [copy.deepcopy(item) for item in items]
    del values[:]
    values.extend(copies)


def _evil(field: Any, message: Any) -> tuple[Any, ...]:
    """Values that a field of this type may have."""
    if field.name == "op_type":
        return tuple(_OP_TYPES)
    if field.type == field.TYPE_ENUM:
        return tuple(field.enum_type.values_by_number)
    if field.type == field.TYPE_STRING:
        return _STRINGS
    if field.type == field.TYPE_BYTES:
        data = getattr(message, field.name) if message is not None else b""
        return (b"", data[:-1], data + b"\x00", data * 2, b"\xff" * 8, b"ij,jk->ik", bytes(len(data)))
    if field.cpp_type in (field.CPPTYPE_FLOAT, field.CPPTYPE_DOUBLE):
        return _FLOATS
    limits = {field.CPPTYPE_INT32: (-(2**31), 2**31 - 1), field.CPPTYPE_UINT64: (0, 2**64 - 1)}
    least, most = limits.get(field.cpp_type, (-(2**63), 2**63 - 1))
    return tuple(value for value in _INTEGERS if least <= value <= most)


MODELS: tuple[ModelProto, ...] = tuple(_models())
