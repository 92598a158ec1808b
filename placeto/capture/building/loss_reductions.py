"""Losses that mean something else in micro-batches, of whose losses a step takes the mean, than on the whole batch."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from placeto.capture.tracing.dependencies import needed_by

aten = torch.ops.aten
_MEAN, _SUM, _IGNORED = 1, 2, -100  # torch's numbers of reductions, and its usual `ignore_index`
_CHOSEN = {aten.nll_loss_forward.default, aten.nll_loss2d_forward.default}
_TARGET, _WEIGHT = 1, 2  # places among the arguments of these


class LossWarning(UserWarning):
    """The loss of a step in micro-batches isn't the loss of the whole batch."""


def other_meaning(traced: GraphModule, rows: int, batch: Mapping[Node, Any]) -> str:
    """Say why the mean over micro-batches isn't the loss of the batch; "" if that can't be seen.

    Ops that combine single numbers are followed back to those that make numbers of tensors. A sum that is divided by
    the number of samples, or by a multiple of it, is a mean.

    Args:
        traced: a training step of a micro-batch, functional; its first output is the loss divided by their number.
        rows: the number of samples of a micro-batch.
        batch: each input that micro-batches split -> its values for the whole batch.
    """
    loss = next(iter(traced.graph.find_nodes(op="output"))).args[0][0]
    pending, seen = [(loss.args[0], False)], set[Node]()
    while pending:
        node, divided = pending.pop()
        if node in seen or node.op != "call_function" or not needed_by([node]) & batch.keys():
            continue
        seen.add(node)
        if node.target is operator.getitem:
            pending.append((cast(Node, node.args[0]), divided))
            continue
        named = _arguments(node)
        reduction = named.get("reduction")
        if node.target in _CHOSEN and reduction == _MEAN:
            if named.get("weight") is not None:
                return "it weights classes, and each micro-batch divides by the weights of its own targets"
            ignored = named.get("ignore_index")
            if ignored != _IGNORED or _holds(cast(Node, node.args[_TARGET]), ignored, batch):
                return "it ignores some targets, and micro-batches count alike however many they have left"
        elif reduction is None and all(map(_is_number, node.all_input_nodes)):
            by = node.args[-1] if getattr(node.target, "overloadpacket", None) is aten.div else None
            divided |= isinstance(by, Node) or (by is not None and by % rows == 0)
            pending += [(source, divided) for source in node.all_input_nodes]
        elif not divided and (reduction == _SUM or getattr(node.target, "overloadpacket", None) is aten.sum):
            return "it is a sum over samples, and the mean over micro-batches is a fraction of it"
    return ""


def _arguments(node: Node) -> dict[str, Any]:
    names = (argument.name for argument in node.target._schema.arguments)  # type: ignore[union-attr]
    return dict(zip(names, node.args, strict=False)) | dict(node.kwargs)


def _is_number(node: Node) -> bool:
    """Whether a node makes a number, or puts numbers together, such as the losses of several heads."""
    value, packet = node.meta["val"], getattr(node.target, "overloadpacket", None)
    parts = [source.meta["val"] for source in node.all_input_nodes] if packet in (aten.cat, aten.stack) else [value]
    return all(isinstance(part, Tensor) and part.numel() == 1 for part in parts)


def _holds(target: Node, ignored: Any, batch: Mapping[Node, Any]) -> bool:
    """Whether a tensor of integers that the targets are made of holds the value that is ignored."""
    values = (batch[node] for node in needed_by([target]) if node in batch)
    tensors = (value for value in values if isinstance(value, Tensor) and not value.is_meta)
    return any(not tensor.is_floating_point() and bool((tensor == ignored).any()) for tensor in tensors)
