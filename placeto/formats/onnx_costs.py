"""What ONNX ops read, write and compute."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any, NamedTuple

from placeto.problem.dtypes import DEFAULT, DTYPES

PASSING = {"Dropout", "Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze"}
"""Ops that move no data."""
_GATHERS = {"Gather", "GatherElements", "GatherND"}  # read only as much of their first input as they write
_FLOATS = {"FLOAT": "float32", "DOUBLE": "float64"}


class Operand(NamedTuple):
    """A tensor's shape and the number of its dtype in ONNX."""

    shape: tuple[int, ...]
    dtype: int

    @property
    def elements(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def is_float(self) -> bool:
        """Whether it holds floating-point numbers, of any width."""
        return "FLOAT" in self.label or self.label in _FLOATS

    @property
    def label(self) -> str:
        """Its dtype as ONNX calls it."""
        import onnx

        return str(onnx.TensorProto.DataType.Name(self.dtype))


def item_bytes(operand: Operand) -> int:
    """Bytes of a tensor; of 4-bit numbers two share one."""
    from onnx import helper

    if operand.label.endswith(("INT4", "FLOAT4E2M1")):
        return -(-operand.elements // 2)
    return operand.elements * int(helper.tensor_dtype_to_np_dtype(operand.dtype).itemsize)


def bytes_accessed(kind: str, read: Sequence[Operand], written: Sequence[Operand]) -> int:
    """Bytes that an op reads and writes."""
    sizes, out = list(map(item_bytes, read)), sum(map(item_bytes, written))
    if kind in _GATHERS:
        sizes[0] = min(sizes[0], out)
    return sum(sizes) + out


def dtype_of(read: Sequence[Operand], written: Sequence[Operand], computes: bool) -> str:
    """What an op computes in: the first floating-point dtype that it writes or reads; products of integers int8."""
    label = next((operand.label for operand in (*written, *read) if operand.is_float), None)
    if label is None:
        return "int8" if computes else DEFAULT
    name = _FLOATS.get(label, label.lower())
    return "float8" if name.startswith("float8") else name if name in DTYPES else DEFAULT


def kernel(kind: str, read: Sequence[Operand], attributes: Mapping[str, Any]) -> str:
    """Whether an op is a convolution of groups of channels, or of each channel by itself."""
    groups = attributes.get("group", 1)
    if kind not in _CONVOLUTIONS or groups == 1:
        return ""
    return "depthwise" if read[0].shape[1] == groups else "grouped"


def flops(kind: str, read: Sequence[Operand | None], written: Sequence[Operand], attributes: Mapping[str, Any]) -> int:
    """FLOPs of products and convolutions, 0 of all else.

    Args:
        kind: type of the op.
        read: its inputs; None is one that is left out.
        written: its outputs.
        attributes: of the node.
    """
    formula = _FORMULAS.get(kind)
    return 0 if formula is None else formula([o.shape if o else () for o in read], written[0].shape, attributes)


_Shapes = Sequence[tuple[int, ...]]


def _convolution(weight: int) -> Callable[[_Shapes, tuple[int, ...], Mapping[str, Any]], int]:
    """Of the weight (M, C / groups, *kernel), the input of that number: each output takes a product with it."""

    def formula(read: _Shapes, out: tuple[int, ...], attributes: Mapping[str, Any]) -> int:
        return 2 * prod(out) * prod(read[weight][1:])

    return formula


def _transposed(read: _Shapes, out: tuple[int, ...], attributes: Mapping[str, Any]) -> int:
    """Of the weight (C, M / groups, *kernel): each input takes a product with it."""
    return 2 * prod(read[0]) * prod(read[1][1:])


def _product(read: _Shapes, out: tuple[int, ...], attributes: Mapping[str, Any]) -> int:
    """Each output is a sum over the last dimension of the first input."""
    return 2 * prod(out) * read[0][-1]


def _gemm(read: _Shapes, out: tuple[int, ...], attributes: Mapping[str, Any]) -> int:
    return 2 * prod(out) * read[0][0 if attributes.get("transA") else 1]


def _recurrent(read: _Shapes, out: tuple[int, ...], attributes: Mapping[str, Any]) -> int:
    """Of x (S, B, I), or (B, S, I), with weights (directions, gates * H, I) and (directions, gates * H, H)."""
    return 2 * read[0][0] * read[0][1] * (prod(read[1]) + prod(read[2]))


def _einsum(read: _Shapes, out: tuple[int, ...], attributes: Mapping[str, Any]) -> int:
    """A product, for each value of all indices together, with each further input."""
    equation = attributes["equation"]
    equation = equation.decode() if isinstance(equation, bytes) else equation
    terms = equation.replace(" ", "").partition("->")[0].split(",")
    if len(terms) != len(read) or any(len(t) != len(s) for t, s in zip(terms, read, strict=True)) or len(read) < 2:
        return 0  # an ellipsis, or no product
    sizes = dict(zip("".join(terms), (size for shape in read for size in shape), strict=True))
    return 2 * prod(sizes.values()) * (len(read) - 1)


def _attention(read: _Shapes, out: tuple[int, ...], attributes: Mapping[str, Any]) -> int:
    """Of queries (B, heads, L, E) and values (B, heads, S, V), or with heads and features in one dimension."""
    q, k, v = read[:3]
    if len(q) == 4:
        return 2 * prod(q) * k[2] + 2 * q[0] * q[1] * q[2] * k[2] * v[3]
    heads = attributes["q_num_heads"]
    width = v[2] // attributes["kv_num_heads"]
    return 2 * prod(q) * k[1] + 2 * q[0] * heads * q[1] * k[1] * width


_CONVOLUTIONS = {"Conv": 1, "ConvInteger": 1, "QLinearConv": 3, "FusedConv": 1, "ConvTranspose": 1}
_FORMULAS: dict[str, Callable[[_Shapes, tuple[int, ...], Mapping[str, Any]], int]] = {
    **{kind: _convolution(weight) for kind, weight in _CONVOLUTIONS.items()},
    "ConvTranspose": _transposed,
    "MatMul": _product,
    "MatMulInteger": _product,
    "FusedMatMul": _product,
    "QLinearMatMul": _product,
    "Gemm": _gemm,
    "RNN": _recurrent,
    "LSTM": _recurrent,
    "GRU": _recurrent,
    "Einsum": _einsum,
    "Attention": _attention,
}
