"""A step in parts: the batch is split; losses are averaged and gradients added, or outputs joined."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from placeto.capture.arguments import Inputs, plain
from placeto.capture.errors import CaptureError
from placeto.capture.labels import Labels


def check_split(inputs: Inputs, targets: Sequence[Any], count: int, name: str) -> None:
    """Refuse a batch that can't be split.

    Raises:
        CaptureError: fewer than one part, no tensor to split, or a length that parts of one size don't make up.
    """
    if count == 1:
        return
    if count < 1:
        raise CaptureError(f"{name}: micro_batches must be at least 1, not {count}")
    length = _length(inputs, targets)
    if length % count or not length:
        raise CaptureError(f"{name}: a batch of {length} can't be split into {count} micro-batches of one size")


def split_batch(inputs: Any, targets: Any, count: int) -> list[tuple[Any, Any]]:
    """Inputs and targets of each part: tensors as long as the first one are split, all else is in every part."""
    length = _length(inputs, targets)

    def of(part: int) -> Any:
        def take(leaf: Any) -> Any:
            split = isinstance(leaf, Tensor) and leaf.dim() > 0 and len(leaf) == length
            return leaf.chunk(count)[part] if split else leaf

        return tree_map(take, (inputs, targets))

    return [of(part) for part in range(count)]


def accumulated(parts: Sequence[Sequence[Tensor | None]], labels: Labels) -> list[Tensor | None]:
    """Sums over parts of a loss and gradients; a gradient that no part has is None."""
    total = list(parts[0])
    for part in parts[1:]:
        for i, value in enumerate(part):
            before = total[i]
            if value is not None:
                with labels.backward() if i else nullcontext():
                    total[i] = value if before is None else before + value
    return total


def joined(parts: Sequence[Any], inputs: Any) -> Any:
    """What the whole batch would give, from what its parts do: tensors as long as a part are joined."""
    length = _length(inputs, ())

    def join(*leaves: Any) -> Any:
        first = leaves[0]
        split = isinstance(first, Tensor) and first.dim() > 0 and len(first) * len(parts) == length
        return torch.cat(leaves) if split else first

    return tree_map(join, *parts)


def _length(inputs: Inputs, targets: Sequence[Any]) -> int:
    for leaf in tree_leaves((plain(inputs), plain(targets))):
        if isinstance(leaf, Tensor) and leaf.dim() > 0:
            return len(leaf)
    return 0
