"""A step in micro-batches: the batch is split, each part is a step of its own, and their results are put together.

Two micro-batches are traced. If the second does the same as the first, all others are copies of the second; otherwise
all are traced. In training, losses are averaged and gradients are added; in inference, outputs are joined.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node
from torch.utils._pytree import tree_leaves, tree_map

from placeto.capture.arguments import Inputs, plain
from placeto.capture.errors import CaptureError
from placeto.capture.labels import Label
from placeto.capture.repetition import repeat
from placeto.problem.graph.labels import NO_MICRO_BATCH

TRACED = 2  # micro-batches that are traced at first: the second is copied if it does the same as the first
HOME = "gradient of"
"""Key in a node's ``meta``: path of the parameter whose gradient, summed over all micro-batches, the node is."""
aten = torch.ops.aten


def check_split(inputs: Inputs, targets: Sequence[Any], count: int, name: str) -> None:
    """Refuse a batch that can't be split.

    Raises:
        CaptureError: `count` is less than 1, there is no tensor to split, or `count` doesn't divide the batch's length.
    """
    if count == 1:
        return
    if count < 1:
        raise CaptureError(f"{name}: micro_batches must be at least 1, not {count}")
    length = batch_length(inputs, targets)
    if not length:
        raise CaptureError(
            f"{name}: no input and no target is a tensor of samples, which micro-batches split: give one, with the "
            "batch first, or use micro_batches=1"
        )
    if length % count:
        raise CaptureError(
            f"{name}: a batch of {length} can't be split into {count} micro-batches of one size: give a number that "
            "divides it"
        )


def split_batch(inputs: Any, targets: Any, count: int) -> list[tuple[Any, Any]]:
    """Inputs and targets of each part: tensors as long as the first one are split, all else is in every part."""
    length = batch_length(inputs, targets)

    def chunks(leaf: Any) -> Sequence[Any]:
        split = isinstance(leaf, Tensor) and leaf.dim() > 0 and len(leaf) == length
        return leaf.chunk(count) if split else (leaf,) * count

    parts: Any = tree_map(lambda leaf: _Parts(chunks(leaf)), (inputs, targets))

    def of(number: int) -> Any:
        return tree_map(lambda leaf: leaf.of[number] if isinstance(leaf, _Parts) else leaf, parts)

    return [of(number) for number in range(count)]


class _Parts:
    """An argument's value for each micro-batch, by the number of the micro-batch."""

    def __init__(self, of: Sequence[Any]) -> None:
        self.of = of


def batch_length(inputs: Inputs, targets: Sequence[Any]) -> int:
    """The length of the first tensor that has a dimension 0; 0 if no tensor has one."""
    for leaf in tree_leaves((plain(inputs), plain(targets))):
        if isinstance(leaf, Tensor) and leaf.dim() > 0:
            return len(leaf)
    return 0


def completed(traced: GraphModule, parts: int, count: int, join: Callable[[Graph, list[list[Any]]], list[Any]]) -> bool:
    """Turn the trace of the first `parts` micro-batches into that of all `count`, in place.

    Args:
        traced: its outputs are those of the first part, then of the second, and so on.
        parts: the number of traced micro-batches: two, or all of them.
        count: the number of all micro-batches.
        join: takes the graph and the outputs of each part; returns the outputs of the whole batch.

    Returns:
        Whether that was possible. If it wasn't, because the two micro-batches differ, the trace is as it was.
    """
    graph = traced.graph
    output = next(iter(reversed(graph.nodes)))
    made = list(output.args[0])
    width = len(made) // parts
    outputs = [made[width * number : width * (number + 1)] for number in range(parts)]
    if parts < count:
        copies = repeat(graph, count, outputs)
        if copies is None:
            return False
        outputs += copies
    output.args = (join(graph, outputs),)
    return True


def accumulated(graph: Graph, parts: Sequence[Sequence[Any]], trained: Sequence[str]) -> list[Any]:
    """The sum of all parts' losses, and for each trained parameter that of its gradients; None where no part has one.

    Each gradient is added as soon as it is there, in the order of the micro-batches, as PyTorch does. A node of its own
    passes the whole sum on to the parameter, since the sum may be computed on another device.

    Args:
        graph: new nodes go into it.
        parts: the outputs of each part: its loss, then its gradients.
        trained: paths of the parameters.
    """
    totals: list[Any] = [_sum(graph, [part[0] for part in parts], backward=False)]
    for path, gradients in zip(trained, list(zip(*parts, strict=True))[1:], strict=True):
        given = [gradient for gradient in gradients if gradient is not None]
        if given:
            total = _sum(graph, given, backward=True)
            label = Label(path.rpartition(".")[0], backward=True)
            total = _after(graph, total, aten.alias.default, (total,), total.meta["val"], label)
            total.meta[HOME] = path
            totals.append(total)
        else:
            totals.append(None)
    return totals


def joined(graph: Graph, parts: Sequence[Sequence[Any]], length: int, name: str) -> list[Any]:
    """The outputs of the whole batch, from those of its parts: tensors as long as a part are joined.

    Other outputs, which don't depend on the batch, are those of the first part.

    Args:
        graph: new nodes go into it.
        parts: the outputs of each part.
        length: the length of the batch.
        name: of the module, for messages.

    Raises:
        CaptureError: another tensor depends on the batch, such as a mean.
    """
    output = next(iter(reversed(graph.nodes)))
    of_batch = _of_batch(graph)
    whole: list[Any] = []
    for leaves in zip(*parts, strict=True):
        layout = leaves[0].meta["val"]
        if layout.dim() > 0 and len(layout) * len(parts) == length:
            with graph.inserting_before(output):
                node = graph.call_function(aten.cat.default, (list(leaves),))
            node.meta |= {"val": torch.cat([leaf.meta["val"] for leaf in leaves]), "label": Label()}
            whole.append(node)
        elif leaves[0] in of_batch:
            raise CaptureError(
                f"{name}: the module returns a tensor of shape {tuple(layout.shape)} for each micro-batch of "
                f"{length // len(parts)}, which can't be joined: return one row for each sample, or use "
                "micro_batches=1"
            )
        else:
            whole.append(leaves[0])
    return whole


def _of_batch(graph: Graph) -> set[Node]:
    """The nodes that depend on the part of the batch that a micro-batch is given."""
    found: set[Node] = set()
    for node in graph.nodes:
        label = node.meta.get("label", Label())
        split = node.target is aten.split.Tensor and label.micro_batch == NO_MICRO_BATCH
        if split or any(source in found for source in node.all_input_nodes):
            found.add(node)
    return found


def _sum(graph: Graph, values: Sequence[Node], backward: bool) -> Node:
    """Add values one after the other, each sum right after the node that it adds, and return the last sum."""
    total = values[0]
    for value in values[1:]:
        label = value.meta["label"]
        label = Label(label.module, label.call, backward)
        total = _after(graph, value, aten.add.Tensor, (total, value), total.meta["val"], label)
    return total


def _after(graph: Graph, node: Node, target: Any, arguments: tuple[Any, ...], layout: Tensor, label: Label) -> Node:
    with graph.inserting_after(node):
        made = graph.call_function(target, arguments)
    made.meta |= {"val": layout, "label": label}
    return made
