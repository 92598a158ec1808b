"""Dimension 0 of inputs and targets is the batch, which micro-batches split.

One micro-batch doesn't always show that. Dimension 0 must not be the sequence of a layer that has its batch in
dimension 1. Nor may a module return numbers that depend on the length of the batch, as only tensors of micro-batches
are joined. Where there are such layers or numbers, the module is called with the whole batch as well.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from itertools import zip_longest
from typing import Any, NamedTuple

from torch import Tensor, nn
from torch.fx import GraphModule, Node
from torch.utils._pytree import tree_leaves, tree_map

from placeto.capture.inputs.arguments import Inputs, call_module, plain
from placeto.capture.inputs.objects import is_number, opened
from placeto.capture.tracing.dependencies import reached
from placeto.errors import CaptureError


def first_samples(values: Any, length: int, count: int) -> Any:
    """A nest with the first `count` samples of each tensor of `length` samples, and with all else as it is."""
    return tree_map(lambda leaf: leaf[:count] if is_split(leaf, length) else leaf, values)


def is_split(leaf: Any, length: int) -> bool:
    """Whether a value has a row for each of `length` samples, so that micro-batches split it."""
    return isinstance(leaf, Tensor) and leaf.dim() > 0 and len(leaf) == length


def batch_length(inputs: Inputs, targets: Sequence[Any]) -> int:
    """The length of the first tensor that has a dimension 0; 0 if no tensor has one."""
    return 0 if (shape := _batch_shape(inputs, targets)) is None else shape[0]


def check_samples(inputs: Inputs, targets: Sequence[Any]) -> None:
    """Refuse a batch without samples, for which there is nothing to plan.

    Raises:
        CaptureError: the first tensor that has a dimension 0 has the length 0.
    """
    if (shape := _batch_shape(inputs, targets)) is not None and not shape[0]:
        raise CaptureError(f"the batch, a tensor of shape {shape}, has no samples: give one as in a run")


def _batch_shape(inputs: Inputs, targets: Sequence[Any]) -> tuple[int, ...] | None:
    leaves = (leaf for leaf in tree_leaves((plain(inputs), plain(targets))) if isinstance(leaf, Tensor))
    return next((tuple(leaf.shape) for leaf in leaves if leaf.dim()), None)


def joined(traced: GraphModule, batch: Sequence[Node], state: Sequence[Node], name: str) -> list[bool]:
    """Whether each output of a micro-batch is joined with those of the others: tensors with a row for each sample are.

    Other outputs, which don't depend on the batch, are those of the first micro-batch.

    Args:
        traced: one micro-batch.
        batch: the inputs that micro-batches split.
        state: the inputs that are parameters and buffers.
        name: the name of the graph, for messages.

    Raises:
        CaptureError: another tensor depends on the batch, such as a mean.
    """
    length = len(batch[0].meta["val"])
    of_batch, of_module = (reached(roots, lambda node: node.users) for roots in (batch, state))
    flags = []
    for node in traced.graph.find_nodes(op="output")[0].args[0]:
        layout = node.meta["val"]
        has_rows = layout.dim() > 0 and len(layout) == length
        if node in of_batch and not has_rows:
            raise CaptureError(
                f"{name}: the module returns a tensor of shape {tuple(layout.shape)} for each micro-batch of {length}, "
                "which can't be joined: return one row for each sample, or use micro_batches=1"
            )
        flags.append(has_rows and (node in of_batch or node not in of_module))
    return flags


class Sizes(NamedTuple):
    """What a call of a module shows of the batch that it is given."""

    sequences: list[tuple[str, str, int]]  # path and kind of each layer without ``batch_first``, length of its sequence
    outputs: list[Any]  # leaves of what the module returns

    @classmethod
    def of(cls, module: nn.Module, inputs: Inputs) -> Sizes:
        """Call the module."""
        sequences: list[tuple[str, str, int]] = []

        def noting(path: str) -> Callable[..., None]:
            def hook(layer: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
                sequence = next(iter((*arguments, *named.values())), None)
                if isinstance(sequence, Tensor):
                    sequences.append((path, type(layer).__name__, len(sequence)))

            return hook

        with ExitStack() as hooks:
            for path, layer in module.named_modules():
                if is_sequence_first(layer):
                    hooks.enter_context(layer.register_forward_pre_hook(noting(path), with_kwargs=True))
            return cls(sequences, tree_leaves(opened(call_module(module, inputs))))


def check_sizes(whole: Sizes, part: Sizes, joined: bool, name: str) -> None:
    """Refuse to split the batch if a sequence is shorter in a micro-batch, or if outputs can't be joined.

    Args:
        whole: of a call with the whole batch.
        part: of a call with a micro-batch.
        joined: whether outputs of micro-batches are joined.
        name: the name of the graph, for messages.

    Raises:
        CaptureError: this is so.
    """
    for (path, kind, length), (same_path, _, shorter) in zip(whole.sequences, part.sequences, strict=False):
        if path == same_path and shorter < length:
            layer = f"module {path!r} ({kind})" if path else "the module"
            raise CaptureError(
                f"{name}: {layer} has its batch in dimension 1, and micro-batches split dimension 0, here its "
                f"sequence of {length}: make it with batch_first=True and give the batch first, or use "
                "micro_batches=1"
            )
    if not joined:
        return
    numbers = [filter(is_number, each.outputs) for each in (whole, part)]
    for of_batch, of_part in zip_longest(*numbers):
        if of_batch != of_part:
            raise CaptureError(
                f"{name}: the module returns {of_part!r} for a micro-batch and {of_batch!r} for the whole batch, "
                "and only tensors of micro-batches are joined: leave it out of the output, or use micro_batches=1"
            )
    tensors = ([leaf for leaf in each.outputs if isinstance(leaf, Tensor)] for each in (whole, part))
    for of_batch, of_part in zip(*tensors, strict=False):
        if of_batch.shape[1:] != of_part.shape[1:]:
            raise CaptureError(
                f"{name}: the module returns a tensor of shape {tuple(of_part.shape)} for a micro-batch and of shape "
                f"{tuple(of_batch.shape)} for the whole batch, so that dimension 0 of its output isn't the batch: "
                "return one row for each sample, or use micro_batches=1"
            )


def is_sequence_first(layer: nn.Module) -> bool:
    """Whether a layer of torch takes the sequence in dimension 0, and the batch in dimension 1."""
    return isinstance(layer, nn.RNNBase | nn.MultiheadAttention) and not layer.batch_first
