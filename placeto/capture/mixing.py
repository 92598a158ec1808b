"""Finds modules that compute one sample from another: dimension 0 of their inputs is no batch that can be split.

Three things are found: loops over dimension 0 in which one position depends on another, as over a sequence; attention
between positions of dimension 0 without a mask; and convolutions along it. Only what is sure to be one of these counts.

A forward pass is traced for some samples, and for twice as many: a dimension that is longer in the second trace has the
samples.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.utils._pytree import tree_map

from placeto.capture.dependencies import needed_by
from placeto.capture.errors import CaptureError
from placeto.capture.labels import Label

FEWEST = 4  # samples that are traced: of fewer, a loop over all of them might be one over pairs
aten = torch.ops.aten
_ATTENTION = "_scaled_dot_product"  # the names of attention ops begin with this
_CUTS = {aten.select.int, aten.unbind.int, aten.split.Tensor, aten.split_with_sizes.default, aten.slice.Tensor}
_SOFTMAXES = {aten._softmax.default, aten._safe_softmax.default}
_PRODUCTS = {aten.bmm.default, aten.mm.default}
_SCALES = {aten.mul.Tensor, aten.mul.Scalar, aten.div.Tensor, aten.div.Scalar}
_SHOWS = {aten.view.default, aten._unsafe_view.default, aten._to_copy.default, aten.clone.default}
_JOINS = {aten.cat.default, aten.stack.default}
_MAKES = {"zeros_like", "ones_like", "empty_like", "full_like", "rand_like", "randn_like"}
_MAKES |= {"new_zeros", "new_ones", "new_empty", "new_full", "new_empty_strided"}  # read a shape, no values

Positions = frozenset[int]
_NONE: Positions = frozenset()


def resized(values: Any, length: int, count: int) -> Any:
    """A nest whose tensors of this length have `count` samples instead: the first ones, repeated where they run out."""

    def of(leaf: Any) -> Any:
        if isinstance(leaf, Tensor) and leaf.dim() > 0 and len(leaf) == length:
            return leaf.detach()[torch.arange(count) % length]
        return leaf

    return tree_map(of, values)


def check_samples(
    traced: GraphModule, part: int, length: int, forward_of: Callable[[int], GraphModule], name: str
) -> None:
    """Refuse to split a batch if forward is sure to compute one sample from another.

    Args:
        traced: the step in micro-batches.
        part: the number of samples in a micro-batch.
        length: the number of samples in the batch.
        forward_of: traces the forward pass of a given number of samples.
        name: the name of the graph, for messages.

    Raises:
        CaptureError: forward does, or it takes 1 sample and the whole batch, but not 2 samples.
    """
    looked_at = part
    if part == 1 and length > 2:
        looked_at = 2
        try:
            traced = forward_of(looked_at)
        except Exception as error:
            try:
                forward_of(length)
            except Exception:  # forward takes single samples only
                return
            raise CaptureError(
                f"{name}: forward takes 1 sample and {length}, but not 2 ({_line(error)}), as it does if a tensor that "
                f"isn't of samples, such as a mask, is {length} long as the batch is: choose another size of the batch"
            ) from error
    if not may_mix(traced, looked_at):
        return
    count = max(part, FEWEST)
    try:
        small, large = forward_of(count), forward_of(2 * count)
    except Exception:  # a module that takes no other number of samples: nothing can be said of it
        return
    if found := mixing(small, large, count):
        path, how = found
        where = f"module {path!r}" if path else "the module"
        raise CaptureError(
            f"{name}: {where} computes one position of dimension 0 from others ({how}), so that it is no dimension of "
            "samples, which micro-batches split: give inputs with the batch first, or use micro_batches=1"
        )


def may_mix(traced: GraphModule, length: int) -> bool:
    """Whether an op of a graph of `length` samples might mix them. If not, as in most graphs, `mixing` isn't needed."""
    return any(_shape(source)[d] == length for node in traced.graph.nodes for source, d in _telling(node))


def mixing(small: GraphModule, large: GraphModule, count: int) -> tuple[str, str] | None:
    """The path of a module that mixes samples, and how it does so; None if no module is sure to.

    Args:
        small: the forward pass of `count` samples; its outputs are those of the module.
        large: the forward pass of twice as many.
        count: at least `FEWEST`.
    """
    pairs = dict(_pairs(small, large))
    needed = needed_by(list(small.graph.nodes)[-1:])
    positions: dict[Node, Positions] = {}
    for node in small.graph.nodes:
        if node.op == "output" or _other(node, pairs) is None:
            continue
        positions[node] = _positions(node, pairs, positions, count)
        if node not in needed:
            continue
        how = _how(node, pairs, positions)
        if how:
            label: Label = node.meta.get("label", Label())
            return label.module, how
    return None


def _how(node: Node, pairs: Mapping[Node, Node], positions: Mapping[Node, Positions]) -> str:
    """How a node mixes samples, as a phrase for a message; "" if it isn't sure to."""
    along = [d for source, d in _telling(node) if d in _longer(source, pairs)]
    if node.target in _SOFTMAXES:
        return "attention" if along and _is_of_product(node.args[0]) else ""
    if _is_attention(node):
        masked = any(value is not None for key, value in node.kwargs.items() if "mask" in key or "bias" in key)
        return "attention" if along and not masked and len(node.args) < 6 else ""
    if node.target is aten.convolution.default:
        return "a convolution" if any(_shape(node.args[1])[d] > 1 for d in along) else ""
    layout = node.meta.get("val")
    if isinstance(layout, Tensor) and layout.is_floating_point() and layout.numel() > 1 and len(positions[node]) > 1:
        return "a loop"
    return ""


def _positions(node: Node, pairs: Mapping[Node, Node], known: Mapping[Node, Positions], count: int) -> Positions:
    """The samples that a value depends on, if it was made from single samples; none for a tensor of all samples."""
    if node.op != "call_function" or _longer(node, pairs):
        return _NONE
    packet = getattr(node.target, "_opname", "")
    if packet in _MAKES:
        return _NONE
    if node.target is operator.getitem:
        source, number = node.args
        return _cut(source, number, pairs) or known.get(source, _NONE)  # type: ignore[arg-type]
    if node.target in (aten.select.int, aten.slice.Tensor) and (cut := _cut(node, 0, pairs)):
        return cut
    found = [known.get(source, _NONE) for source in node.all_input_nodes]
    if node.target in _JOINS and len(found) >= count:  # the samples are joined to a batch again
        return _NONE
    return _NONE.union(*found)


def _cut(node: Any, number: Any, pairs: Mapping[Node, Node]) -> Positions:
    """The samples in part `number` of a tensor that a node cuts along its samples; none of any other node."""
    if not isinstance(node, Node) or node.target not in _CUTS:
        return _NONE
    dimension = _dimension(node)
    if dimension not in _longer(node.args[0], pairs):
        return _NONE
    if node.target is aten.select.int:
        return frozenset([int(node.args[2])])  # type: ignore[arg-type]
    if node.target is aten.slice.Tensor:
        length = _shape(node.args[0])[dimension]
        start, end, step, *_ = *node.args[2:5], None, None, None
        return frozenset(range(*slice(start, end, step).indices(length)))
    return frozenset([number])


def _telling(node: Node) -> list[tuple[Any, int]]:
    """Arguments of an op, each with a dimension along which the op might mix samples."""
    if node.op != "call_function" or not node.args or not (size := len(_shape(node.args[0]))):
        return []
    if node.target in _CUTS:
        return [(node.args[0], _dimension(node))]
    if node.target in _SOFTMAXES:
        return [(node.args[0], _softmaxed(node))]
    if _is_attention(node):
        return [(node.args[1], size - 2)]
    return [(node.args[0], d) for d in range(2, size)] if node.target is aten.convolution.default else []


def _is_attention(node: Node) -> bool:
    return str(node.target).startswith(f"aten.{_ATTENTION}")


def _softmaxed(node: Node) -> int:
    dimension: Any = node.args[1]
    return int(dimension) % len(_shape(node.args[0]))


def _dimension(node: Node) -> int:
    """The dimension along which a node cuts a tensor."""
    place = 2 if node.target in (aten.split.Tensor, aten.split_with_sizes.default) else 1
    given: Any = node.args[place] if place < len(node.args) else node.kwargs.get("dim", 0)
    return int(given) % len(_shape(node.args[0]))


def _is_of_product(node: Any) -> bool:
    """Whether scores of attention are a product of matrices, perhaps scaled, to which no mask was added."""
    while isinstance(node, Node) and node.target not in _PRODUCTS:
        scaled = node.target in _SCALES and not isinstance(node.args[1], Node)
        if not scaled and node.target not in _SHOWS:
            return False
        node = node.args[0]
    return isinstance(node, Node)


def _pairs(small: GraphModule, large: GraphModule) -> Iterator[tuple[Node, Node]]:
    """Pairs of nodes of both traces that run the same op, up to the first that don't; `getitem` is left to `_other`."""
    for one, other in zip(*(_without_parts(graph) for graph in (small, large)), strict=False):
        if one.op != other.op or (one.target != other.target and one.op == "call_function"):
            return
        yield one, other


def _without_parts(traced: GraphModule) -> Iterator[Node]:
    return (node for node in traced.graph.nodes if node.target is not operator.getitem)


def _other(node: Node, pairs: Mapping[Node, Node]) -> Any:
    """The layout of a node in the trace of more samples; None if it isn't known."""
    if node.target is operator.getitem:
        source, number = node.args
        of = pairs.get(source)  # type: ignore[arg-type]
        return None if of is None else of.meta["val"][number]
    return pairs[node].meta["val"] if node in pairs else None


def _longer(node: Any, pairs: Mapping[Node, Node]) -> tuple[int, ...]:
    """The dimensions of a tensor that are longer if there are more samples."""
    one, other = node.meta.get("val"), _other(node, pairs)
    if not isinstance(one, Tensor) or not isinstance(other, Tensor) or one.dim() != other.dim():
        return ()
    return tuple(d for d, (a, b) in enumerate(zip(one.shape, other.shape, strict=True)) if a != b)


def _shape(node: Any) -> tuple[int, ...]:
    layout = node.meta.get("val") if isinstance(node, Node) else None
    return tuple(layout.shape) if isinstance(layout, Tensor) else ()


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"
