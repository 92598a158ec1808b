"""What a step writes to its inputs at its end: buffers, and arguments that it changes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from placeto.capture.tracing.statistics import Update, updates_of
from placeto.runtime.program import Program


def put(updates: Sequence[Update], values: Sequence[Tensor], places: Mapping[Node, int], leaves: Sequence[Any]) -> None:
    """Write values to the leaves that a step changes.

    A call of a norm makes ``kept * old + (1 - kept) * batch`` of a statistic. If several calls do so, each of the same
    old value, the result is as if they had done it one after the other.

    Args:
        updates: what is written.
        values: the value of each.
        places: the place of each input among the leaves.
        leaves: the values that went into the step.
    """
    before = {update.input: leaves[places[update.input]].clone() for update in updates if update.kept}
    with torch.no_grad():
        for update, value in zip(updates, values, strict=True):
            leaf, new = leaves[places[update.input]], value.to(leaves[places[update.input]].device)
            leaf.copy_(torch.add(new, leaf - before[update.input], alpha=update.kept) if update.kept else new)


def update_before(failed: Node | None, traced: GraphModule, places: Mapping[Node, int], leaves: Sequence[Any]) -> None:
    """Change the leaves as the ops before a failed one do, in the order of the module.

    Nothing is changed if the failed op isn't known, or on GPUs, which may have failed for good.
    """
    if failed is None or any(isinstance(leaf, Tensor) and leaf.device.type != "cpu" for leaf in leaves):
        return
    updates = [update for update in updates_of(traced) if update.value < failed]
    program = Program.of(traced, outputs=[update.value for update in updates])
    with torch.no_grad():
        put(updates, program.compile()(*leaves), places, leaves)


def overlapping(values: Mapping[int, Any], changed: Iterable[int]) -> tuple[int, int] | None:
    """Return the places of a tensor that is changed and of one that shares its memory; None without such.

    Args:
        values: tensors and other values by place.
        changed: the places of those that are changed.
    """
    changed = sorted(changed)
    spans = {place: _span(value) for place, value in values.items()} if changed else {}
    for changed_place in changed:
        device, first, end = spans[changed_place]
        for place, (its_device, its_first, its_end) in spans.items():
            if place != changed_place and its_device == device and first < its_end and its_first < end:
                return changed_place, place
    return None


def _span(value: Any) -> tuple[Any, int, int]:
    """Return device, first address and end of a tensor's memory; (None, 0, 0) if it is no tensor or has no elements."""
    if not isinstance(value, Tensor) or not value.numel():
        return None, 0, 0
    last = sum((size - 1) * stride for size, stride in zip(value.shape, value.stride(), strict=True))
    first = value.data_ptr()
    return value.device, first, first + (last + 1) * value.element_size()
