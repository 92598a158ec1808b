"""What a traced `torch.fx` node reads, writes and computes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor
from torch.fx import Node

from placeto.capture.flops import WITHOUT_TF32, flops_of, has_formula
from placeto.problem.dtypes import DEFAULT, DTYPES
from placeto.problem.graph.labels import CHANNELS_LAST

aten = torch.ops.aten
# read only as much of their first input as they write
_GATHERS = {aten.embedding, aten.index_select, aten.gather, aten.index, aten.nll_loss_forward}
_DROPOUT = (aten.bernoulli, aten.div, aten.mul)  # as CPUs compute it


def nodes_read(node: Node) -> list[Node]:
    """The nodes whose values a node reads: of an input whose gradient is asked for, a convolution reads the shape."""
    if getattr(node.target, "overloadpacket", None) is not aten.convolution_backward:
        return node.all_input_nodes
    gradient, x, weight = cast(tuple[Node, Node, Node], node.args[:3])
    of_input, of_weight, _ = cast(Sequence[bool], node.args[10])
    return [gradient, *([x] if of_weight else []), *([weight] if of_input else [])]


def tensor_bytes(value: Any) -> int:
    """Bytes of a tensor's storage, or of the part of it that a view shows."""
    return min(value.numel() * value.element_size(), value.untyped_storage().nbytes())


def tensors_of(node: Node) -> list[Tensor]:
    """The tensors that a node makes."""
    value = node.meta["val"]
    return [v for v in (value if isinstance(value, list | tuple) else (value,)) if isinstance(v, Tensor)]


def bytes_accessed(node: Node) -> int:
    """Bytes that a node reads and writes."""
    read = [sum(map(tensor_bytes, tensors_of(source))) for source in nodes_read(node)]
    written = sum(map(tensor_bytes, tensors_of(node)))
    if getattr(node.target, "overloadpacket", None) in _GATHERS:
        read[0] = min(read[0], written)
    return sum(read) + written


def flops(node: Node) -> int:
    """FLOPs of matrix products, convolutions and their like, 0 of all else; see `placeto.capture.flops`."""
    packet = getattr(node.target, "overloadpacket", node.target)
    if not has_formula(packet):
        return 0

    def value(argument: Any) -> Any:
        return argument.meta["val"] if isinstance(argument, Node) else argument

    args = torch.fx.node.map_aggregate(node.args, value)
    kwargs = torch.fx.node.map_aggregate(node.kwargs, value)
    return flops_of(packet, args, kwargs, node.meta["val"])


def in_tf32(node: Node) -> bool:
    """Whether a product computes in TF32 where that is asked for."""
    return dtype(node) == "float32" and str(getattr(node.target, "overloadpacket", "")) not in WITHOUT_TF32


def dtype(node: Node) -> str:
    """What a node computes in: the dtype of the first floating-point tensor that it makes, else that it reads.

    Products of integers compute in int8; what else there is of integers counts as float32, which no cost depends on.
    """
    tensors = (v for part in (node, *nodes_read(node)) for v in tensors_of(part))
    first = next((v.dtype for v in tensors if v.is_floating_point() or v.is_complex()), None)
    if first is None:
        return "int8" if flops(node) else DEFAULT
    name = str(first.to_real()).removeprefix("torch.")
    return "float8" if name.startswith("float8") else name if name in DTYPES else DEFAULT


def kernel(node: Node) -> str:
    """Which kernel computes a node where its type doesn't tell: one of `placeto.problem.graph.labels.KERNELS`."""
    packet = getattr(node.target, "overloadpacket", None)
    if packet in _DROPOUT:
        return "dropout" if any(map(_is_mask, (node, *node.all_input_nodes))) else ""
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


def _is_mask(node: Node) -> bool:
    """Whether a node is of what dropout is on a CPU: numbers drawn, scaled, and what a tensor is multiplied with."""
    packet = getattr(node.target, "overloadpacket", None)
    if packet is aten.div:
        scaled, by = node.args[:2]
        return isinstance(scaled, Node) and _is_mask(scaled) and not isinstance(by, Node)
    drawn_into = node.args[0] if packet is aten.bernoulli else None
    return isinstance(drawn_into, Node) and getattr(drawn_into.target, "overloadpacket", None) is aten.empty_like


def _split_convolution_backward(*args: Any) -> Any:
    """The gradient of the input by itself, then those of weight and bias."""
    of_input, of_weight, of_bias = args[10]
    if not (of_input and (of_weight or of_bias)):
        return NotImplemented
    backward = aten.convolution_backward.default
    gradient = backward(*args[:10], [True, False, False])[0]
    return gradient, *backward(*args[:10], [False, of_weight, of_bias])[1:]


def _rrelu_of_contiguous(x: Tensor, *arguments: Any, **named: Any) -> Any:
    """Its output is contiguous whatever it is given; that of the functional op, and of fake tensors, is not."""
    if x.is_contiguous():
        return NotImplemented
    return aten.rrelu_with_noise.default(x.contiguous(), *arguments, **named)


# for make_fx: ops that do what several kernels do; what they leave as it is they don't implement
DECOMPOSITIONS: dict[torch._ops.OpOverload, Callable[..., Any]] = {
    aten.convolution_backward.default: _split_convolution_backward,
    aten.rrelu_with_noise.default: _rrelu_of_contiguous,
}
