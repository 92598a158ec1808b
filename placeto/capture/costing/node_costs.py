"""What a traced `torch.fx` node reads, writes and computes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor
from torch.fx import Node
from torch.fx.node import map_arg

from placeto.capture.costing.flops import TRANSFORMS, WITHOUT_TF32, formula_of
from placeto.problem.dtypes import DEFAULT, DTYPES
from placeto.problem.graph.label_values import CHANNELS_LAST

aten = torch.ops.aten
# ops that read only as much of their first input as they write
_GATHERS = {aten.embedding, aten.index_select, aten.gather, aten.index, aten.nll_loss_forward}
# ops that read no value of their input, so that what they make counts as a constant
CONSTANT_LIKE = {
    aten.zeros_like,
    aten.ones_like,
    aten.full_like,
    aten.empty_like,
    aten.new_zeros,
    aten.new_ones,
    aten.new_full,
    aten.new_empty,
    aten.new_empty_strided,
}
_DROPOUT = (aten.bernoulli, aten.div, aten.mul)  # the ops of a dropout on a CPU


def packet_of(node: Node) -> Any:
    """The op that a node calls, whichever overload of it; the target of another node as it is."""
    return getattr(node.target, "overloadpacket", node.target)


def nodes_read(node: Node) -> list[Node]:
    """The nodes whose values a node reads.

    The backward op of a convolution reads the input only for the gradient of the weight, and the weight only for that
    of the input. Otherwise their shapes are enough.
    """
    if packet_of(node) is not aten.convolution_backward:
        return node.all_input_nodes
    gradient, x, weight = cast(tuple[Node, Node, Node], node.args[:3])
    of_input, of_weight, _ = cast(Sequence[bool], node.args[10])
    return [gradient, *([x] if of_weight else []), *([weight] if of_input else [])]


def tensor_bytes(value: Any) -> int:
    """Bytes of a tensor's elements, at most those of its storage, as an expanded tensor repeats its elements."""
    return min(value.numel() * value.element_size(), value.untyped_storage().nbytes())


def tensors_of(node: Node) -> list[Tensor]:
    """The tensors that a node makes."""
    value = node.meta["val"]
    return [v for v in (value if isinstance(value, list | tuple) else (value,)) if isinstance(v, Tensor)]


def bytes_accessed(node: Node) -> int:
    """Bytes that a node reads and writes."""
    read = [sum(map(tensor_bytes, tensors_of(source))) for source in nodes_read(node)]
    written = sum(map(tensor_bytes, tensors_of(node)))
    if packet_of(node) in _GATHERS:
        read[0] = min(read[0], written)
    return sum(read) + written


def flops(node: Node) -> int:
    """FLOPs that a node computes; 0 if `placeto.capture.costing.flops` has no formula for its op."""
    packet = packet_of(node)
    formula = formula_of(str(packet), packet)
    if formula is None:
        return 0
    args, kwargs = map_arg((node.args, node.kwargs), lambda source: source.meta["val"])
    is_complex = any(tensor.is_complex() for source in node.all_input_nodes for tensor in tensors_of(source))
    times = 4 if is_complex and str(packet) not in TRANSFORMS else 1
    return int(formula(*args, **kwargs, out_val=node.meta["val"])) * times


def in_tf32(node: Node) -> bool:
    """Whether a product computes in TF32 if the precision of the step is "tf32"."""
    return dtype(node) == "float32" and str(packet_of(node)) not in WITHOUT_TF32


def dtype(node: Node) -> str:
    """The dtype that a node computes in: that of the first floating-point tensor that it makes, or else reads.

    Without such a tensor, products compute in int8, and other ops count as float32, on which no cost of theirs depends.
    Complex numbers count as their real parts, and a dtype that isn't in `DTYPES` counts as float32.
    """
    tensors = (v for part in (node, *nodes_read(node)) for v in tensors_of(part))
    first = next((v.dtype for v in tensors if v.is_floating_point() or v.is_complex()), None)
    if first is None:
        return "int8" if flops(node) else DEFAULT
    name = str(first.to_real()).removeprefix("torch.")
    return "float8" if name.startswith("float8") else name if name in DTYPES else DEFAULT


def kernel(node: Node) -> str:
    """Which kernel computes a node, where its type doesn't say: one of `placeto.problem.graph.label_values.KERNELS`."""
    packet = packet_of(node)
    if packet in _DROPOUT:
        return "dropout" if any(map(is_mask, (node, *node.all_input_nodes))) else ""
    if packet not in (aten.convolution, aten.convolution_backward):
        return ""
    backward = packet is aten.convolution_backward
    x, groups = cast(Node, node.args[1 if backward else 0]), node.args[9 if backward else 8]
    kinds = [] if groups == 1 else ["depthwise" if x.meta["val"].shape[1] == groups else "grouped"]
    tensors = [tensors_of(source)[0] for source in node.all_input_nodes[: 3 if backward else 2]]
    return "_".join([*kinds, CHANNELS_LAST] if any(map(_is_channels_last, tensors)) else kinds)


def _is_channels_last(tensor: Tensor) -> bool:
    layout = {4: torch.channels_last, 5: torch.channels_last_3d}.get(tensor.dim())
    return layout is not None and not tensor.is_contiguous() and tensor.is_contiguous(memory_format=layout)


def is_mask(node: Node) -> bool:
    """Whether a node makes the mask of a dropout on a CPU: it draws random bits, or divides such bits by a number."""
    packet = packet_of(node)
    if packet is aten.div:
        scaled, by = node.args[:2]
        return isinstance(scaled, Node) and is_mask(scaled) and not isinstance(by, Node)
    drawn_into = node.args[0] if packet is aten.bernoulli else None
    return isinstance(drawn_into, Node) and packet_of(drawn_into) is aten.empty_like


def _split_convolution_backward(*args: Any) -> Any:
    """Compute the gradient of the input by itself, then those of weight and bias.

    Returns NotImplemented if the op doesn't compute both.
    """
    of_input, of_weight, of_bias = args[10]
    if not (of_input and (of_weight or of_bias)):
        return NotImplemented
    backward = aten.convolution_backward.default
    gradient = backward(*args[:10], [True, False, False])[0]
    return gradient, *backward(*args[:10], [False, of_weight, of_bias])[1:]


def _rrelu_of_contiguous(x: Tensor, *arguments: Any, **named: Any) -> Any:
    """Compute `rrelu_with_noise` of a contiguous copy; return NotImplemented if x is contiguous.

    The op's output is always contiguous; that of the functional op, and that of fake tensors, is not.
    """
    if x.is_contiguous():
        return NotImplemented
    return aten.rrelu_with_noise.default(x.contiguous(), *arguments, **named)


# op -> what the recorder runs in its place, as several recorded ops; NotImplemented where the op stays as it is
DECOMPOSITIONS: dict[torch._ops.OpOverload, Callable[..., Any]] = {
    aten.convolution_backward.default: _split_convolution_backward,
    aten.rrelu_with_noise.default: _rrelu_of_contiguous,
}
