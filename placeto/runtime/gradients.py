"""Adds the gradients of a placed step to the ``.grad`` of their tensors."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn


def add_gradients(tensors: Sequence[Tensor], gradients: Sequence[Tensor | None]) -> None:
    """Add gradients to the ``.grad`` of tensors, as ``backward()`` does.

    A gradient that was made on another device is first moved to its tensor's device. If any of the tensors has hooks or
    isn't a parameter, autograd adds all gradients, so that hooks run as they do in a backward pass.

    Args:
        tensors: the tensors that require gradients.
        gradients: the gradient of each, or None.
    """
    pairs = [
        (tensor, gradient.to(tensor.device))
        for tensor, gradient in zip(tensors, gradients, strict=True)
        if gradient is not None
    ]
    if any(has_hooks(tensor) or not isinstance(tensor, nn.Parameter) for tensor in tensors):
        reshaped = [gradient.reshape(tensor.shape) for tensor, gradient in pairs]
        if pairs:
            torch.autograd.backward([tensor for tensor, _ in pairs], reshaped)
        return
    in_use: set[int] = set()  # memory that is a gradient already: another gradient in it is copied
    with torch.no_grad():
        for tensor, gradient in pairs:
            if tensor.grad is not None:
                tensor.grad += gradient
                continue
            storage = gradient.untyped_storage()
            own_memory = storage.data_ptr() not in in_use
            own_memory &= storage.nbytes() == gradient.numel() * gradient.element_size()
            in_use.add(storage.data_ptr())
            same = gradient.stride() == tensor.stride()
            tensor.grad = gradient.detach() if own_memory and same else torch.empty_like(tensor).copy_(gradient)


def has_hooks(tensor: Tensor) -> bool:
    """Whether a tensor has hooks, which are called when it gets its gradient."""
    return bool(getattr(tensor, "_backward_hooks", None) or getattr(tensor, "_post_accumulate_grad_hooks", None))
