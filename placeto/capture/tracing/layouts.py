"""Layouts of tensors without their values, and of results of ops in place that stand in a trace as functional ops.

Some functional ops, such as `aten.masked_fill`, return a contiguous tensor; the op in place leaves the layout as it is.
Products of another layout round in another way. So the op in place is run, on a copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils._mode_utils import no_dispatch

ON_COPY = "on copy"
"""Key in a node's ``meta``: whether a placed step runs the op in place that the module ran, on a copy."""


def is_on_copy(func: Any, ran: Any, args: Sequence[Any], result: Any) -> bool:
    """Whether only the op in place that the module ran gives its result the layout that it has in the module.

    Args:
        func: the functional op.
        ran: the op that the module ran.
        args: the arguments of both.
        result: what the functional op has returned.
    """
    if not isinstance(ran, OpOverload) or not isinstance(result, Tensor) or not args or not isinstance(args[0], Tensor):
        return False
    with no_dispatch():
        dense = torch.empty_like(args[0]).stride() == args[0].stride()
    if not dense or args[0].stride() == result.stride() or args[0].shape != result.shape:
        return False
    names = func.overloadpacket.__name__ + "_", func._overloadname
    is_twin = names == (ran.overloadpacket.__name__, ran._overloadname) and args[0].dtype == result.dtype
    return is_twin and torch.Tag.nondeterministic_seeded not in ran.tags


def layouts_of(value: Any) -> Any:
    """A value with tensors on "meta" in place of its tensors, of the same shape, strides, dtype and size of storage."""
    if isinstance(value, list | tuple):
        return [layouts_of(part) for part in value]
    if not isinstance(value, Tensor):
        return value
    with no_dispatch():
        size = value.untyped_storage().nbytes() // value.element_size()
        whole = torch.empty(size, dtype=value.dtype, device="meta")
        return whole.as_strided(value.shape, value.stride(), value.storage_offset())
