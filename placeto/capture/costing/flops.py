"""FLOPs of products: a table of ops with their formulas, and a line about the computing ops that have no formula.

Matrix products, convolutions, attention, distances and Fourier transforms are counted, with 2 FLOPs for a
multiplication and an addition. Other ops, such as norms, pooling and elementwise ops, have 0 FLOPs. Products of complex
numbers take 4 times as many FLOPs as those of real numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import log2, prod
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop, sdpa_flop

from placeto.problem.graph import ComputationGraph
from placeto.problem.graph.uncounted import told, without_formula


def formula_of(kind: str, packet: Any) -> Callable[..., int] | None:
    """The formula of an op's FLOPs, as in `FORMULAS`, or registered with torch's flop counter; None if it has none.

    Args:
        kind: its type, such as "aten.mm".
        packet: the op itself, such as ``torch.ops.aten.mm``.
    """
    return FORMULAS.get(kind) or flop_registry.get(packet)


def uncounted(graph: ComputationGraph) -> str:
    """One line about the computing ops of a captured graph that have no formula, "" if all have one."""
    counts = without_formula(graph, lambda kind: formula_of(kind, _packet(kind)) is not None)
    if all(kind.startswith("onnx.") for kind in counts):
        return told(counts)
    return f"{told(counts)}; torch.utils.flop_counter.register_flop_formula gives them one"


def _packet(kind: str) -> Any:
    namespace, _, name = kind.rpartition(".")
    return getattr(getattr(torch.ops, namespace, None), name, None)


def convolution_backward(
    gradient: Tensor,
    x: Tensor,
    weight: Tensor,
    bias_sizes: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    output_padding: Any,
    groups: int,
    output_mask: Sequence[bool],
    out_val: Any,
) -> int:
    """FLOPs of the gradients of input and weight: each that is computed takes as many as the forward pass.

    torch's own formula ignores groups.
    """
    positions = prod((x if transposed else gradient).shape[2:])
    return sum(output_mask[:2]) * 2 * x.shape[0] * positions * weight.numel()


def _convolution_of(x: Tensor, weight: Tensor, *args: Any, out_val: Tensor, **kwargs: Any) -> int:
    """FLOPs of a convolution with a weight (M, C / groups, *kernel): each output is a dot product with a filter."""
    return 2 * out_val.numel() * prod(weight.shape[1:])


def _deformed_backward(gradient: Tensor, x: Tensor, weight: Tensor, *args: Any, out_val: Any, **kwargs: Any) -> int:
    return 2 * _convolution_of(x, weight, out_val=gradient)


def _attention(q: Tensor, k: Tensor, v: Tensor, *args: Any, out_val: Any, **kwargs: Any) -> int:
    return int(sdpa_flop(q.shape, k.shape, v.shape))


def _attention_backward(gradient: Tensor, q: Tensor, k: Tensor, v: Tensor, *args: Any, out_val: Any, **kw: Any) -> int:
    return int(sdpa_backward_flop(gradient.shape, q.shape, k.shape, v.shape))


def _heads(q: Tensor, k: Tensor, v: Tensor, width: int, *args: Any, out_val: Any, **kwargs: Any) -> int:
    """FLOPs of `nn.MultiheadAttention` in one kernel: queries (B, L, D), keys and values (B, S, D)."""
    queries, keys = q.shape[0] * q.shape[1], k.shape[0] * k.shape[1]
    projections = 2 * width**2 * (2 * queries + 2 * keys)  # to queries and outputs, and to keys and values
    return projections + 4 * queries * k.shape[1] * width


def _rows(a: Tensor, *args: Any, out_val: Tensor, **kwargs: Any) -> int:
    """FLOPs of an op whose outputs are each a sum of products over the last dimension of the first input."""
    return 2 * out_val.numel() * a.shape[-1]


def _grouped(a: Tensor, b: Tensor, *args: Any, out_val: Any, **kwargs: Any) -> int:
    """FLOPs of products of groups of rows, or of columns, each group with a matrix of its own."""
    return 2 * a.numel() * b.shape[-1]


def _behind(formula: Callable[..., int]) -> Callable[..., int]:
    """The formula of an op whose first argument comes before those of `formula`, such as what a product is added to."""
    return lambda first, *args, **kwargs: formula(*args, **kwargs)


def _first(a: Tensor, *args: Any, out_val: Any, **kwargs: Any) -> int:
    """FLOPs of an op that multiplies and adds each element of the first input once."""
    return 2 * a.numel()


def _trilinear(
    a: Tensor,
    b: Tensor,
    c: Tensor,
    expand_a: Sequence[int],
    expand_b: Sequence[int],
    expand_c: Sequence[int],
    summed: Sequence[int],
    unrolled: int = 1,
    *,
    out_val: Any,
) -> int:
    """FLOPs of PyTorch's method: a times b, then the sum over the summed dimensions that c lacks, then times c."""
    shapes = []
    for tensor, expanded in ((a, expand_a), (b, expand_b), (c, expand_c)):
        shape = list(tensor.shape)
        for dim in sorted(expanded):
            shape.insert(dim, 1)
        shapes.append(shape)
    two = [max(sizes) for sizes in zip(*shapes[:2], strict=True)]
    kept = [1 if dim in summed and dim in expand_c else size for dim, size in enumerate(two)]
    return 2 * prod(two) + 2 * prod(map(max, kept, shapes[2]))


def _grid(theta: Tensor, *args: Any, out_val: Tensor, **kwargs: Any) -> int:
    """FLOPs of a grid: each coordinate is a product of a row of theta (N, 2 | 3, 3 | 4) with a position."""
    return 2 * out_val.numel() * theta.shape[-1]


def _distances(a: Tensor, b: Tensor, *args: Any, out_val: Any, **kwargs: Any) -> int:
    """FLOPs of the distances between all rows of a (..., P, M) and all rows of b (..., R, M)."""
    return 2 * prod(torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])) * a.shape[-2] * b.shape[-2] * a.shape[-1]


def _transform(a: Tensor, dims: Sequence[int], *args: Any, out_val: Tensor, **kwargs: Any) -> int:
    """FLOPs of a Fourier transform: 5 n log2 n for n complex numbers, and half of that if its input or output is real.

    This is FFTW's convention, https://www.fftw.org/speed/. `torch.stft` computes such a transform of each frame.
    """
    whole = a if a.numel() >= out_val.numel() else out_val
    length = prod(whole.shape[dim] for dim in dims)
    real = not (a.is_complex() and out_val.is_complex())
    return round((2.5 if real else 5.0) * whole.numel() * log2(length)) if length else 0


_KINDS: dict[Callable[..., int], str] = {
    _rows: "_int_mm",
    _behind(_grouped): "addbmm",
    _grouped: "_grouped_mm",
    _first: "mv dot vdot",
    _behind(_first): "addmv",
    _trilinear: "_trilinear",
    _grid: "affine_grid_generator",
    _distances: "_euclidean_dist _cdist_forward",
    _behind(_distances): "_cdist_backward",
    convolution_backward: "convolution_backward",
    _heads: "_native_multi_head_attention",
    _attention: "_scaled_dot_product_flash_attention_for_cpu",
    _attention_backward: "_scaled_dot_product_flash_attention_for_cpu_backward",
    _transform: "_fft_c2c _fft_r2c _fft_c2r",
}
FORMULAS: dict[str, Callable[..., int]] = {
    **{f"aten.{name}": formula for formula, names in _KINDS.items() for name in names.split()},
    "torchvision.deform_conv2d": _convolution_of,
    "torchvision._deform_conv2d_backward": _deformed_backward,
}
"""Type of op -> formula of its FLOPs, which takes the op's arguments and, as ``out_val``, what the op returns.

They are for ops that a capture records. For a type that isn't here, torch's own table is used."""
TRANSFORMS = {"aten._fft_c2c", "aten._fft_r2c", "aten._fft_c2r"}
"""Ops whose formula already counts complex numbers."""
WITHOUT_TF32 = TRANSFORMS | {"aten._cdist_forward", "aten._cdist_backward"}
"""Ops that compute in float32 where products compute in TF32."""
