"""Which tensors a backward pass reaches: those that a placed step gives gradients to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._pytree import tree_leaves

from placeto.capture.errors import CaptureError
from placeto.capture.objects import opened


def asking(*arguments: Any) -> list[Tensor]:
    """The tensors of a step's arguments that ask for a gradient."""
    return [leaf for leaf in tree_leaves(opened(arguments)) if isinstance(leaf, Tensor) and leaf.requires_grad]


def gradients_of(
    loss: Tensor, wanted: Sequence[Tensor], name: str, replaced: Mapping[int, str] = MappingProxyType({})
) -> tuple[Tensor | None, ...]:
    """Gradients of a loss.

    Args:
        loss: a scalar.
        wanted: all tensors that should get one.
        name: the name of the graph, for messages.
        replaced: paths of the module's own parameters, by `id`; while it is traced it has others.

    Raises:
        CaptureError: another tensor would get one, which is neither a parameter nor an argument.
    """
    _check_reached(loss, wanted, name, replaced)
    return torch.autograd.grad(loss.reshape(()), wanted, allow_unused=True)


def _check_reached(loss: Tensor, known: Iterable[Tensor], name: str, replaced: Mapping[int, str]) -> None:
    mine = {id(tensor) for tensor in known}
    fake = isinstance(loss, FakeTensor)
    seen: set[Any] = set()
    stack = [loss.grad_fn]
    while stack:
        node = stack.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        reached = getattr(node, "variable", None)
        # what the step makes itself may ask for a gradient, too
        foreign = not isinstance(reached, FakeTensor) if fake else isinstance(reached, torch.nn.Parameter)
        if path := replaced.get(id(reached)):
            raise CaptureError(
                f"{name}: the loss, or forward, holds the parameter {path!r} itself, which is another tensor while the "
                "module is traced: read it from the module each time"
            )
        if isinstance(reached, Tensor) and id(reached) not in mine and foreign:
            raise CaptureError(
                f"{name}: the loss depends on a trainable tensor of shape {tuple(reached.shape)} that is no parameter "
                "of the module: make it one (layers in a list go into an nn.ModuleList), or give the loss as an "
                "nn.Module that has it, or detach it"
            )
        stack.extend(parent for parent, _ in node.next_functions)
