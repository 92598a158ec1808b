"""Losses that mean something else in micro-batches, of whose losses a step takes the mean, than on the whole batch.

Of each traced value that depends on the batch it is known whether it has the samples apart, in one of its dimensions,
or how it combines them. The mean over all samples is the mean over micro-batches, and so is what is linear in it. What
else combines samples isn't: a sum, a mean of some samples, a maximum, the root of a mean.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from placeto.capture.costing.node_costs import CONSTANT_LIKE, packet_of, tensors_of
from placeto.capture.tracing.dependencies import needed_by

aten = torch.ops.aten
_MEAN, _SUM, _IGNORED = 1, 2, -100  # torch's numbers of reductions, and its usual `ignore_index`
_TARGET = 1  # place among the arguments of `_CHOSEN`


def _packets(names: str) -> set[Any]:
    return {getattr(aten, name) for name in names.split()}


_CHOSEN = _packets("nll_loss_forward nll_loss2d_forward")
_MEANS, _SUMS = _packets("mean"), _packets("sum nansum count_nonzero")
_OTHERS = _packets(
    "amax amin max min prod linalg_vector_norm norm logsumexp var std var_mean std_mean median mode topk "
    "kthvalue any all"
)
_PRODUCTS = _packets("mm addmm bmm baddbmm mv dot")
_SECOND_FACTORS = ("mat2", "batch2", "vec", "tensor")
_ALONG = _packets("_softmax _log_softmax cumsum cumprod logcumsumexp cummax cummin sort flip roll")
_DISTANCES = _packets("_cdist_forward _pdist_forward")
_SPLITS, _JOINS = _packets("split split_with_sizes unbind"), _packets("add cat stack")
_VIEWS = _packets("view _unsafe_view reshape")
_LINEAR = {*_MEANS, *_SUMS, *_VIEWS, operator.getitem} | _packets(
    "add sub rsub neg mul div cat stack expand clone _to_copy alias detach select slice squeeze unsqueeze permute "
    "transpose t nan_to_num"
)

_IS_SUM = "it is a sum over samples, and the mean over micro-batches is a fraction of it"
_IS_RATIO = (
    "it multiplies or divides two values that depend on the samples, as a masked mean does, and micro-batches count "
    "alike whatever theirs are"
)
_IS_COMPARED = "it compares samples with each other, and a micro-batch has fewer of them to compare with"
_IS_CHOICE = "it chooses samples by their places in the batch, and a micro-batch has others there"
_IS_FUNCTION = "it takes {} over samples, and the mean over micro-batches is another number"


class LossWarning(UserWarning):
    """The loss of a step in micro-batches isn't the loss of the whole batch."""


@dataclass(frozen=True)
class _Apart:
    """What a value is that has the samples apart."""

    dim: int | None  # the dimension in which they are, as its outermost part; None = that can't be seen
    divided: bool = False  # whether it is divided by the number of samples, so that its sum is a mean
    part: int | None = None  # which part of the samples it is made of, as halves of a batch; None = of all, or unknown


@dataclass(frozen=True)
class _Combined:
    """What a value is that combines the samples."""

    why: str = ""  # why the value of the batch isn't the mean over micro-batches; "" = it is
    sizes: frozenset[int] = frozenset()  # of a sum: the numbers of samples, or of elements, that make it a mean


def other_meaning(traced: GraphModule, rows: int, batch: Mapping[Node, Any]) -> str:
    """Say why the mean over micro-batches isn't the loss of the batch; "" if that can't be seen.

    Args:
        traced: a training step of a micro-batch, functional; its first output is the loss divided by their number.
        rows: the number of samples of a micro-batch.
        batch: each input that micro-batches split -> its values for the whole batch.
    """
    loss = next(iter(traced.graph.find_nodes(op="output"))).args[0][0].args[0]
    needed, states = needed_by([loss]), dict[Node, _Apart | _Combined]()
    for node in traced.graph.nodes:
        if node in batch:
            states[node] = _Apart(0)
        elif node in needed and any(each in states for each in node.all_input_nodes) and not _is_free(node, batch):
            apart = {source: s.dim for source in node.all_input_nodes if isinstance(s := states.get(source), _Apart)}
            combined = {source: s for source in node.all_input_nodes if isinstance(s := states.get(source), _Combined)}
            parts = {cast(_Apart, states[source]).part for source in apart} - {None}
            if not apart:
                states[node] = _combined_further(node, combined)
            elif why := next((s.why for s in combined.values() if s.why), "") or _ignoring(node, batch):
                states[node] = _Combined(why)
            elif rows > 1 and (
                _compares(node, apart, bool(combined)) or (len(parts) > 1 and packet_of(node) not in _JOINS)
            ):
                states[node] = _Combined(_IS_COMPARED)
            elif rows > 1 and any(d is not None and _chooses(node, source, d, states) for source, d in apart.items()):
                states[node] = _Combined(_IS_CHOICE)
            else:
                sizes = _sizes(rows, [*apart, *batch])
                state, divided = _of_samples(node, rows, apart), _is_divided(node, sizes, states)
                if isinstance(state, _Apart):
                    part = _part(node, apart, states)
                    inherited = next(iter(parts)) if len(parts) == 1 else None
                    states[node] = _Apart(state.dim, divided, inherited if part is None else part)
                elif state.why == _IS_SUM:
                    states[node] = _Combined() if divided else _Combined(_IS_SUM, sizes)
                else:
                    states[node] = state
    of_loss = states.get(loss)
    return of_loss.why if isinstance(of_loss, _Combined) else ""


def _combined_further(node: Node, states: Mapping[Node, _Combined]) -> _Combined:
    """What a value is that is made of values that combine samples, and of others that don't depend on the batch."""
    packet = packet_of(node)
    reasons = [states[source].why for source in node.all_input_nodes if source in states]
    why, sizes = next(filter(None, reasons), ""), frozenset.union(*(state.sizes for state in states.values()))
    if why not in ("", _IS_SUM):
        return _Combined(why)
    if packet in (aten.mul, aten.div):
        first, second = cast(tuple[Any, Any], node.args[:2])
        if second in states and (first in states or packet is aten.div):
            return _Combined(_IS_RATIO)
        if why == _IS_SUM and packet is aten.div and (isinstance(second, Node) or second in sizes):
            return _Combined()
    if packet not in _LINEAR:
        return _Combined(_IS_FUNCTION.format(f"{packet.__name__} of a mean or a sum"))
    return _Combined(why, sizes)


def _is_divided(node: Node, sizes: Collection[int], states: Mapping[Node, _Apart | _Combined]) -> bool:
    """Whether a value with the samples apart is divided by their number, or is linear in such values."""
    packet = packet_of(node)
    parts = [states.get(source) for source in node.all_input_nodes]
    if packet is aten.div and not isinstance(node.args[1], Node) and node.args[1] in sizes:
        return True
    further = packet in (aten.add, aten.sub) and not isinstance(node.args[1], Node)  # a number, which isn't divided
    factors = packet in (aten.mul, aten.div) and sum(part is not None for part in parts) > 1
    rest = [] if packet in (aten.mul, aten.div) else [part for part in parts if part is None]
    known = [part for part in parts if part is not None]
    alike = all(isinstance(part, _Apart) and part.divided for part in known)
    return packet in _LINEAR and alike and not (further or factors or rest)


def _sizes(rows: int, nodes: Collection[Node]) -> frozenset[int]:
    """The numbers by which a sum over samples may be divided to be a mean: of samples, or of elements of tensors.

    They are the products of the number of samples and some dimensions. A divisor that is none of them, such as the size
    of the whole batch, was written as a number. 2 is none of them either: it is more likely half of a square.
    """
    sizes = {rows}
    for node in nodes:
        factors = [{1, size, size // rows if size % rows == 0 else 1} for size in _layout(node).shape]
        sizes |= {rows * prod(chosen) for chosen in product(*factors)}
    return frozenset(sizes - {2})


def _is_free(node: Node, batch: Mapping[Node, Any]) -> bool:
    """Whether a node reads no values, or compares targets with one that none of them has, as the one ignored."""
    if packet_of(node) in CONSTANT_LIKE:
        return True
    if node.target not in (aten.eq.Scalar, aten.ne.Scalar):
        return False
    target, value = cast(tuple[Node, Any], node.args)
    return not _layout(target).is_floating_point() and not _holds(target, value, batch)


def _compares(node: Node, apart: Mapping[Node, int | None], with_combined: bool) -> bool:
    """Whether a value that is made of values with the samples apart compares samples with each other.

    Args:
        node: the node of the value.
        apart: those of its sources that have the samples apart -> the dimension.
        with_combined: whether it is also made of values that combine samples.
    """
    packet = packet_of(node)
    if with_combined and packet is not aten.add:  # a sum of losses, one of each sample and a mean
        return True
    if None in apart.values():
        return False
    dims, named = {source: cast(int, dim) for source, dim in apart.items()}, _arguments(node)
    if packet in _DISTANCES:
        both = len(dims) == len(node.all_input_nodes)  # distances to constants are of one sample each
        return both and all(dim == _layout(source).dim() - 2 for source, dim in dims.items())
    if packet in _ALONG:
        ((source, dim),) = dims.items()
        return _layout(source).is_floating_point() and dim in _dims(
            named.get("dims", named.get("dim")), _layout(source)
        )
    if packet in _PRODUCTS and len(dims) == 2:
        first, second = (dim - _layout(source).dim() for source, dim in dims.items())
        return (first, second) == (-2, -1)  # of the rows of the one with the columns of the other
    if torch.Tag.pointwise in getattr(node.target, "tags", ()):
        return len({dim - _layout(source).dim() for source, dim in dims.items()}) > 1
    return False


def _part(node: Node, apart: Mapping[Node, int | None], states: Mapping[Node, _Apart | _Combined]) -> int | None:
    """The first of the samples that a value takes from a tensor, if it takes neighbours; None if not, or unknown."""
    if node.target is operator.getitem:
        split, place = cast(tuple[Node, int], node.args)
        if packet_of(split) not in _SPLITS:
            return None
        whole = cast(Node, split.args[0])
        if not isinstance(state := states.get(whole), _Apart):
            return None
        (over,) = _dims(_arguments(split)["dim"], _layout(whole))
        return sum(part.shape[over] for part in split.meta["val"][:place]) if over == state.dim else None
    for source, dim in apart.items():
        chosen = None if dim is None else _chosen(node, source, dim)
        places = range(_layout(source).shape[dim or 0])
        if isinstance(chosen, int):
            return places[chosen]
        if isinstance(chosen, slice) and chosen.step == 1 and len(places[chosen]) < len(places):
            return places[chosen].start
    return None


def _chooses(node: Node, source: Node, dim: int, states: Collection[Node]) -> bool:
    """Whether a value is a choice of samples from a tensor that has them in a dimension, not all of them alike often.

    A loop that takes each sample by its number chooses all of them, and so does an index that is made by `arange`. Of
    an index that depends on samples, such as the order of tokens by their experts, it isn't known.
    """
    chosen = _chosen(node, source, dim)
    if chosen is None or isinstance(chosen, Node):
        needed = () if chosen is None or chosen in states else needed_by([chosen])
        return bool(needed) and all(each.target is not aten.arange.default for each in needed)
    often = np.zeros(_layout(source).shape[dim], np.int64)
    for places in (_chosen(user, source, dim) for user in source.users):
        if isinstance(places, int | slice):
            often[places] += 1
    return len(set(often.tolist())) > 1


def _chosen(node: Node, source: Node, dim: int) -> Any:
    """Which places of a dimension of a tensor a node takes: a number, a slice or a node; None if it is no choice."""
    packet, named = packet_of(node), _arguments(node)
    if packet is aten.index and node.args[0] is source:
        return (named["indices"] + [None] * (dim + 1))[dim]
    if packet not in (aten.select, aten.slice, aten.index_select) or _dims(named["dim"], _layout(source)) != [dim]:
        return None
    return slice(named["start"], named["end"], named["step"]) if packet is aten.slice else named["index"]


def _of_samples(node: Node, rows: int, apart: Mapping[Node, int | None]) -> _Apart | _Combined:
    """What a value is that is made of values with the samples apart.

    Args:
        node: the node of the value.
        rows: the number of samples.
        apart: those of its sources that have the samples apart -> the dimension.
    """
    packet = packet_of(node)
    named = _arguments(node)
    if named.get("reduction") in (_MEAN, _SUM):
        return _Combined(_IS_SUM if named["reduction"] == _SUM else "")
    if packet is aten.masked_select or (packet is aten.index and _is_mask(named["indices"])):
        return _Combined(_IS_FUNCTION.format("some elements"))
    source, dim = next(iter(apart.items()))
    before, after = _layout(source), _layout(node)
    over = _dims(named.get("dim"), before) if packet in _MEANS | _SUMS | _OTHERS and "other" not in named else None
    if None in apart.values() and (
        over is None or after.numel() > 1 or before.numel() == 1 or rows == 1 <= after.dim()
    ):
        return _Apart(None)  # a dimension of one element may be that of a single sample
    dim = cast(int, dim)
    if over is not None:
        if dim in over or None in apart.values():
            other = _IS_FUNCTION.format(packet.__name__)
            return _Combined("" if packet in _MEANS else _IS_SUM if packet in _SUMS else other)
        dim -= 0 if after.dim() == before.dim() else sum(place < dim for place in over)
    elif packet in _PRODUCTS:
        second = any(named.get(name) is source for name in _SECOND_FACTORS)
        if dim == (max(before.dim() - 2, 0) if second else before.dim() - 1):
            return _Combined(_IS_SUM)
    elif packet in _VIEWS:
        places = [place for place in range(after.dim()) if prod(after.shape[:place]) == prod(before.shape[:dim])]
        if rows == 1:  # then a dimension of one element is the only trace of the samples
            places = [place for place in places if after.shape[place] == 1]
        dim = max(places) if places and (rows > 1 or len(places) == 1) else -1
    else:
        dim = _moved(packet, named, dim, before, after)
    if after.numel() == 1 < before.numel() and rows > 1:
        return _Combined(_IS_FUNCTION.format(packet.__name__))
    return _Apart(dim if 0 <= dim < after.dim() and after.shape[dim] % rows == 0 else None)


def _moved(packet: Any, named: Mapping[str, Any], dim: int, before: Tensor, after: Tensor) -> int:
    """The dimension that has the samples after an op that computes for each of them; -1 if that isn't known."""
    if packet in (aten.embedding, aten.view_as_real):
        return dim
    if packet is aten.permute:
        return _dims(named["dims"], before).index(dim)
    if packet in (aten.transpose, aten.t):
        first, second = _dims([named.get("dim0", 0), named.get("dim1", 1)], before)
        return {first: second, second: first}.get(dim, dim)
    if packet in (aten.unsqueeze, aten.stack):
        return dim + (_dims(named.get("dim", 0), after)[0] <= dim)
    if packet in (aten.select, aten.squeeze):
        over = _dims(named.get("dim"), before)
        gone = over if packet is aten.select else [place for place in over if before.shape[place] == 1]
        return -1 if dim in gone else dim - sum(place < dim for place in gone)
    place = dim + max(after.dim() - before.dim(), 0)  # broadcast
    return place if place < after.dim() and after.shape[place] == before.shape[dim] else -1


def _dims(given: Any, tensor: Tensor) -> list[int]:
    """Dimensions as an op is given them, one, several, or none for all, counted from the first."""
    places = [given] if isinstance(given, int) else given or range(tensor.dim())
    return [place % tensor.dim() for place in places]


def _layout(node: Node) -> Tensor:
    return tensors_of(node)[0]


def _is_mask(indices: Any) -> bool:
    return any(isinstance(index, Node) and _layout(index).dtype is torch.bool for index in indices)


def _ignoring(node: Node, batch: Mapping[Node, Any]) -> str:
    """Say why a mean of losses of classes leaves out targets, or weights them; "" if it is none, or doesn't."""
    chosen = packet_of(node) in _CHOSEN
    if not chosen or (named := _arguments(node))["reduction"] != _MEAN:
        return ""
    if named.get("weight") is not None:
        return "it weights classes, and each micro-batch divides by the weights of its own targets"
    ignored = named["ignore_index"]
    if ignored != _IGNORED or _holds(cast(Node, node.args[_TARGET]), ignored, batch):
        return "it ignores some targets, and micro-batches count alike however many they have left"
    return ""


def _arguments(node: Node) -> dict[str, Any]:
    schema = getattr(node.target, "_schema", None)
    usual = {argument.name: argument.default_value for argument in schema.arguments} if schema else {}
    return usual | dict(zip(usual, node.args, strict=False)) | dict(node.kwargs)


def _holds(target: Node, ignored: Any, batch: Mapping[Node, Any]) -> bool:
    """Whether a tensor of integers that the targets are made of holds the value that is ignored."""
    values = (batch[node] for node in needed_by([target]) if node in batch)
    tensors = (value for value in values if isinstance(value, Tensor) and not value.is_meta)
    return any(not tensor.is_floating_point() and bool((tensor == ignored).any()) for tensor in tensors)
