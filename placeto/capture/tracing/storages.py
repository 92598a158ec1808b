"""Results of ops whose storage is larger than they are.

These ops make their result for all elements of what they are given, and shrink its shape at the end. The memory stays
as it was, for as long as the result lives: on CPUs and on GPUs, which run the same code there. PyTorch's fake tensors
are as small as the result.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

aten = torch.ops.aten
LARGER = {
    aten.mse_loss.default: 2,
    aten.smooth_l1_loss.default: 2,
    aten.soft_margin_loss.default: 2,
    aten.binary_cross_entropy.default: 1,
    aten.col2im.default: 1,
}
"""Op -> how many of its arguments, broadcast to one shape, are as large as what it allocates."""
_AS_PREDICTED = {
    aten.mse_loss_backward.default,
    aten.smooth_l1_loss_backward.default,
    aten.soft_margin_loss_backward.default,
}
"""Ops whose result has the dtype of their second argument, also if the targets have a larger one."""


def as_stored(func: Any, args: Sequence[Any], result: Any) -> Any:
    """The result of an op; if it is a fake tensor, one with the dtype and the size of storage of a real one."""
    if not isinstance(result, FakeTensor):
        return result
    if func in _AS_PREDICTED and result.dtype is not args[1].dtype:
        return torch.empty_like(result, dtype=args[1].dtype)
    if func not in LARGER:
        return result
    shapes = [value.shape for value in args[: LARGER[func]] if isinstance(value, Tensor)]
    return result.new_empty(torch.broadcast_shapes(*shapes)).resize_(result.shape)
