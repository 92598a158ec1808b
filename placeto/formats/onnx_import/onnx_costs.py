"""The bytes that ONNX ops read and write, their FLOPs, and the dtype in which they compute."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import log2, prod
from typing import Any, NamedTuple

from placeto.problem.dtypes import DEFAULT, DTYPES

PASSING = {"Dropout", "Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze"}
"""Ops that move no data: they only give a tensor another shape or name."""
_GATHERS = {  # op -> inputs of which it reads only as many bytes as it writes
    **dict.fromkeys(("Gather", "GatherElements", "GatherND", "GatherBlockQuantized", "Slice"), (0,)),
    "EmbedLayerNormalization": (2, 3, 4),
}
_PACKED_BITS = {"UINT4": 4, "INT4": 4, "FLOAT4E2M1": 4, "UINT2": 2, "INT2": 2}  # of dtypes that share a byte
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
        """Whether the tensor holds floating-point numbers, of any width."""
        return "FLOAT" in self.label or self.label in _FLOATS

    @property
    def label(self) -> str:
        """ONNX's name of the dtype."""
        import onnx

        return str(onnx.TensorProto.DataType.Name(self.dtype))


def item_bytes(operand: Operand) -> int:
    """Return the bytes of a tensor; several numbers of 4 or 2 bits share a byte."""
    from onnx import helper

    if bits := _PACKED_BITS.get(operand.label):
        return -(-operand.elements * bits // 8)
    return operand.elements * int(helper.tensor_dtype_to_np_dtype(operand.dtype).itemsize)


def bytes_accessed(kind: str, read: Sequence[Operand | None], written: Sequence[Operand]) -> int:
    """Return the bytes that an op reads and writes.

    Args:
        kind: type of the op.
        read: its inputs; None for an input that is left out, or that is the same tensor as an earlier one.
        written: its outputs.
    """
    sizes = [item_bytes(operand) if operand else 0 for operand in read]
    out = sum(map(item_bytes, written))
    for number in _GATHERS.get(kind, ()):
        sizes[number] = min(sizes[number], out)
    return sum(sizes) + out


def dtype_of(read: Sequence[Operand], written: Sequence[Operand], computes: bool) -> str:
    """Return the dtype in which an op computes: the first floating-point dtype that it writes or reads.

    An op that has FLOPs (`computes`) and multiplies integers computes in int8.
    """
    if computes and not read[0].is_float:
        return "int8"
    label = next((operand.label for operand in (*written, *read) if operand.is_float), None)
    if label is None:
        return DEFAULT
    name = _FLOATS.get(label, label.lower())
    return "float8" if name.startswith("float8") else name if name in DTYPES else DEFAULT


def kernel(kind: str, read: Sequence[Operand], attributes: Mapping[str, Any]) -> str:
    """Return "depthwise" for a convolution of each channel by itself, "grouped" for one in groups, else ""."""
    groups = attributes.get("group", 1)
    if kind not in ("Conv", "ConvTranspose", "DeformConv") or groups == 1:
        return ""
    return "depthwise" if read[0].shape[1] == groups else "grouped"


def flops(kind: str, read: Sequence[Operand | None], written: Sequence[Operand], attributes: Mapping[str, Any]) -> int:
    """Return the FLOPs of an op: those of a product, a convolution or a Fourier transform; 0 for all other ops.

    Args:
        kind: type of the op, which is one of ONNX's own.
        read: its inputs; None for an input that is left out.
        written: its outputs.
        attributes: the attributes of the node.
    """
    formula = _FORMULAS.get(kind)
    return 0 if formula is None else formula([o.shape if o else () for o in read], written[0].shape, attributes)


_Shapes = Sequence[tuple[int, ...]]


def _convolution(read: _Shapes, out: tuple[int, ...], attributes: Mapping[str, Any]) -> int:
    """FLOPs of a convolution with the weight (M, C / groups, *kernel).

    Each element of the output is a sum of C / groups * kernel products.
    """
    groups, channels, each = attributes.get("group", 1), read[0][1], read[1][1]
    if channels != groups * each:
        raise ValueError(f"{channels} channels in, but {groups} x {each} in its weight")
    return 2 * prod(out) * prod(read[1][1:])


def _transposed(read: _Shapes, out: tuple[int, ...], attributes: Mapping[str, Any]) -> int:
    """FLOPs of a transposed convolution with the weight (C, M / groups, *kernel).

    Each element of the input takes part in M / groups * kernel products.
    """
    return 2 * prod(read[0]) * prod(read[1][1:])


def _product(read: _Shapes, out: tuple[int, ...], attributes: Mapping[str, Any]) -> int:
    """FLOPs of a matrix product, of which each output is a sum over the last dimension of the first input."""
    return 2 * prod(out) * read[0][-1]


def _gemm(read: _Shapes, out: tuple[int, ...], attributes: Mapping[str, Any]) -> int:
    return 2 * prod(out) * read[0][0 if attributes.get("transA") else 1]


def _recurrent(read: _Shapes, out: tuple[int, ...], attributes: Mapping[str, Any]) -> int:
    """FLOPs of a recurrent layer on x (S, B, I) or (B, S, I).

    Its weights are (directions, gates * H, I) and (directions, gates * H, H).
    """
    return 2 * read[0][0] * read[0][1] * (prod(read[1]) + prod(read[2]))


def _einsum(read: _Shapes, out: tuple[int, ...], attributes: Mapping[str, Any]) -> int:
    """FLOPs of an Einsum, whose inputs are multiplied from left to right, as ONNX Runtime does it.

    In each step the product so far is multiplied with the next input. An index that only one of these two has, and
    neither a later input nor the output, is summed before.
    """
    equation = attributes["equation"]
    equation = equation.decode() if isinstance(equation, bytes) else equation
    before, arrow, after = equation.replace(" ", "").partition("->")
    terms = before.split(",")
    if len(terms) != len(read):
        raise ValueError(f"{len(terms)} terms, but {len(read)} inputs")
    indices = [_indices(term, shape) for term, shape in zip(terms, read, strict=True)]
    sizes: dict[str | int, int] = {}
    for term, shape in zip(indices, read, strict=True):
        for index, size in zip(term, shape, strict=True):
            sizes[index] = max(size, sizes.get(index, 1))
    each = [index for term in indices for index in term]
    of_output = set(after) if arrow else {index for index in sizes if each.count(index) == 1}
    of_output |= {index for index in sizes if isinstance(index, int)}
    work, left = 0, set(indices[0])
    for number, term in enumerate(indices[1:], start=2):
        kept, right = of_output.union(*indices[number:]), set(term)
        left, right = left & (right | kept), right & (left | kept)
        work += 2 * prod(sizes[index] for index in left | right)
        left = (left | right) & kept
    return work


def _indices(term: str, shape: tuple[int, ...]) -> list[str | int]:
    """Return the index of each dimension of an Einsum's input.

    It is a letter or, for the dimensions of an ellipsis, their place from the right, from which they are broadcast.
    """
    before, dots, after = term.partition("...")
    hidden = range(len(shape) - len(before) - len(after), 0, -1) if dots else ()
    indices = [*before, *hidden, *after]
    if len(indices) != len(shape):
        raise ValueError(f"the term {term!r} has {len(indices)} indices for {len(shape)} dimensions")
    return indices


def _attention(read: _Shapes, out: tuple[int, ...], attributes: Mapping[str, Any]) -> int:
    """FLOPs of an attention of queries (B, heads, L, E) and values (B, heads, S, V).

    Heads and features may also be in one dimension. Inputs 4 and 5 are keys and values of the past.
    """
    q, k, v = read[:3]
    keys = k[-2] + (read[4][2] if len(read) > 4 and len(read[4]) == 4 else 0)
    if len(q) == 4:
        return 2 * q[0] * q[1] * q[2] * keys * (q[3] + v[3])
    heads, groups = attributes["q_num_heads"], attributes["kv_num_heads"]
    return 2 * q[0] * heads * q[1] * keys * (q[2] // heads + v[2] // groups)


def _transform(read: _Shapes, out: tuple[int, ...], attributes: Mapping[str, Any]) -> int:
    """FLOPs of Fourier transforms along one axis; the last dimension is 1 for real numbers, 2 for complex ones."""
    axis = int(attributes.get("axis", 1))
    length = out[axis]
    if attributes.get("onesided", 0) and not attributes.get("inverse", 0):  # out has n // 2 + 1 of n
        length = _whole(length, read[0][axis])
    return _fourier(prod(out[:-1]) // max(out[axis], 1), length, min(read[0][-1], out[-1]) == 1)


def _frames_transform(read: _Shapes, out: tuple[int, ...], attributes: Mapping[str, Any]) -> int:
    """FLOPs of Fourier transforms of frames of x, which is (B, L) or (B, L, 1) for real numbers, else (B, L, 2).

    The output is (B, frames, n, 2), or one-sided (B, frames, n // 2 + 1, 2) unless an attribute says otherwise. Input 2
    is the window (n,).
    """
    window = read[2] if len(read) > 2 else ()
    length = _whole(out[2], window[0] if window else 0) if attributes.get("onesided", 1) else out[2]
    return _fourier(out[0] * out[1], length, read[0][2:] != (2,))


def _whole(half: int, guess: int) -> int:
    """Return the length of a transform whose one side has `half` elements: `guess` if it fits, else the even length."""
    return guess if guess // 2 + 1 == half else 2 * (half - 1)


def _fourier(transforms: int, length: int, real: bool) -> int:
    """FLOPs of transforms: 5 n log2 n each, half of that if input or output is real; https://www.fftw.org/speed/."""
    return round((2.5 if real else 5.0) * transforms * length * log2(max(length, 1)))


_FORMULAS: dict[str, Callable[[_Shapes, tuple[int, ...], Mapping[str, Any]], int]] = {
    "Conv": _convolution,
    "DeformConv": _convolution,
    "ConvTranspose": _transposed,
    "MatMul": _product,
    "Gemm": _gemm,
    "RNN": _recurrent,
    "LSTM": _recurrent,
    "GRU": _recurrent,
    "Einsum": _einsum,
    "Attention": _attention,
    "DFT": _transform,
    "STFT": _frames_transform,
}
