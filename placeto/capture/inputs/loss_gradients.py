"""Gradients of a loss, and a check that its backward pass reaches only tensors to which a placed step gives them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._pytree import tree_leaves

from placeto.capture.inputs.objects import opened
from placeto.capture.tracing.dependencies import behind
from placeto.errors import CaptureError


def requiring_grad(*arguments: Any) -> list[Tensor]:
    """The tensors among a step's arguments that require a gradient."""
    return [leaf for leaf in tree_leaves(opened(arguments)) if isinstance(leaf, Tensor) and leaf.requires_grad]


def gradients_of(loss: Tensor, tensors: Sequence[Tensor], name: str) -> tuple[Tensor | None, ...]:
    """The gradient of a loss for each wanted tensor, None where the loss doesn't depend on the tensor.

    Args:
        loss: a tensor of one number.
        tensors: all tensors that may get a gradient.
        name: the name of the graph, for messages.

    Raises:
        CaptureError: the loss depends on a trainable tensor that is neither a parameter nor an argument, or on none of
            the wanted tensors.
    """
    _check_reached(loss, tensors, name)
    gradients = torch.autograd.grad(loss.reshape(()), tensors, allow_unused=True) if loss.requires_grad else ()
    if all(gradient is None for gradient in gradients):
        raise CaptureError(
            f"{name}: the loss doesn't depend on any trainable parameter: give one that does, or capture the inference"
        )
    return gradients


def _check_reached(loss: Tensor, known: Iterable[Tensor], name: str) -> None:
    known_ids = {id(tensor) for tensor in known}
    fake = isinstance(loss, FakeTensor)
    for node in behind(loss):
        reached = getattr(node, "variable", None)
        # a tensor that the step itself makes may require a gradient as well
        foreign = not isinstance(reached, FakeTensor) if fake else isinstance(reached, torch.nn.Parameter)
        if isinstance(reached, Tensor) and id(reached) not in known_ids and foreign:
            raise CaptureError(
                f"{name}: the loss depends on a trainable tensor of shape {tuple(reached.shape)} that is no parameter "
                "of the module: make it one (layers in a list go into an nn.ModuleList), or give the loss as an "
                "nn.Module that has it, or detach it"
            )
