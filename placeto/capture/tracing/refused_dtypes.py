"""Refuses dtypes that torch's kernels refuse and its fake tensors accept.

An op on fake tensors computes shapes and runs no kernel. So each op is also run on real tensors of its dtypes, once.
They are small and hold zeros, since which dtypes a kernel takes depends neither on sizes nor on values.
"""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor
from torch.utils._mode_utils import no_dispatch
from torch.utils._pytree import tree_leaves, tree_map

from placeto.capture.tracing.meanwhile import meanwhile

_LARGEST = 2**14  # elements of a tensor that is really made
# trials: the greatest size of a tensor's dimensions, and the greatest whole number besides; which fit depends on the op
_TRIALS = ((math.inf, math.inf), (1, math.inf), (1, 1), (8, math.inf), (8, 8))
_ABOUT_DTYPES = re.compile(r"\bd?types?\b|not implemented for '|\bbool|\bcomplex|\blong( tensor|, int)", re.IGNORECASE)
_NARROW = re.compile(r"not implemented for '(Half|BFloat16|Float[48]|ComplexHalf|UInt)")  # GPUs may have that kernel
_WIDER = {torch.float16: torch.float64, torch.bfloat16: torch.float64, torch.complex32: torch.complex128}
COLLECTIVES = "_c10d_functional"
"""Namespace of the collectives of a tensor-parallel group."""
_taken: set[Any] = set()  # ops with dtypes that have been tried


def check_dtypes(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
    """Refuse arguments whose dtypes the op's kernel doesn't take.

    Raises:
        TypeError: dtypes of the arguments don't go with the op, or with each other; the message has torch's own.
    """
    if func.namespace == COLLECTIVES:  # to be run, they would need the other ranks
        return
    key = func, *map(_dtypes, args), *map(_dtypes, kwargs.values())
    if key in _taken or any(tensor.numel() == 0 for tensor in _tensors((args, kwargs))):  # kernels take empty ones
        return
    if refusal := _refusal(func, args, kwargs, {}):
        dtypes = dict.fromkeys(str(leaf.dtype).removeprefix("torch.") for leaf in _tensors((args, kwargs)))
        raise TypeError(f"{func.overloadpacket} takes no {' and '.join(dtypes)} ({refusal}): cast one of its tensors")
    _taken.add(key)


def _dtypes(value: Any) -> Any:
    """What of an argument may decide whether a kernel takes it: dtypes, which tensors are scalars, and types."""
    if isinstance(value, Tensor):
        return value.dtype, value.dim() == 0
    if isinstance(value, list | tuple):
        return tuple(map(_dtypes, value))
    return value if isinstance(value, torch.dtype) else type(value)


def _refusal(func: Any, args: Sequence[Any], kwargs: dict[str, Any], cast: Mapping[Any, torch.dtype]) -> str:
    """The kernel's message if it refuses the dtypes of these arguments, some of them cast; "" if it isn't sure to."""
    call = args, kwargs
    if not _tensors(call) or "backward" in func.overloadpacket.__name__:  # GPUs' take more; the forward op was tried
        return ""
    with (
        no_dispatch(),
        torch.no_grad(),
        torch.random.fork_rng(devices=[]),
        onednn(True),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        for sizes, numbers in _TRIALS:
            try:
                small = _alike(call, sizes, numbers, cast, "meta")
                result = func(*small[0], **small[1])
            except Exception:  # torch's formulas of shapes may raise any
                continue  # these sizes don't fit together
            if any(tensor.numel() > _LARGEST for tensor in _tensors((small, result))):
                continue
            small = _alike(call, sizes, numbers, cast, "cpu")
            try:
                func(*small[0], **small[1])
            except Exception as error:
                message = next(iter(str(error).strip().splitlines()), "").rstrip(".")
                if _NARROW.search(message):
                    return "" if cast else _refusal(func, args, kwargs, _WIDER)
                return message if _ABOUT_DTYPES.search(message) else ""
            return ""
    return ""


def _alike(arguments: Any, sizes: float, numbers: float, cast: Mapping[Any, torch.dtype], device: str) -> Any:
    """Arguments of an op with tensors of zeros on another device, their sizes and other whole numbers made smaller."""

    def alike(leaf: Any) -> Any:
        if isinstance(leaf, Tensor):
            shape = [int(min(size, sizes)) for size in leaf.shape]
            return torch.zeros(shape, dtype=cast.get(leaf.dtype, leaf.dtype), device=device)
        if isinstance(leaf, torch.Generator):
            return None
        if isinstance(leaf, torch.device):
            return torch.device(device)
        if isinstance(leaf, torch.dtype):
            return cast.get(leaf, leaf)
        return min(leaf, numbers) if type(leaf) is int else leaf

    return tree_map(alike, arguments)


def _tensors(values: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor)]


def onednn(enabled: bool) -> AbstractContextManager[None]:
    """A context with or without oneDNN, which torch uses by default: with it, `nn.LSTM` on the CPU is a single op."""
    return meanwhile(torch._C._set_mkldnn_enabled, enabled, torch._C._get_mkldnn_enabled())
