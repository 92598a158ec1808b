"""Dtypes that torch's kernels refuse, and its fake tensors don't.

Legend: the tables give the places of the arguments that matter.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten
_ALIKE: dict[Any, Sequence[int]] = {  # must have one dtype
    aten.mm: (0, 1),
    aten.addmm: (0, 1, 2),
    aten.bmm: (0, 1),
    aten.baddbmm: (0, 1, 2),
    aten.addbmm: (0, 1, 2),
    aten.mv: (0, 1),
    aten.addmv: (0, 1, 2),
    aten.dot: (0, 1),
    aten.vdot: (0, 1),
    aten.convolution: (0, 1, 2),
    aten.index_add: (0, 3),
    aten.index_add_: (0, 3),
    aten.index_copy: (0, 3),
    aten.index_copy_: (0, 3),
    aten.index_put: (0, 2),
    aten.index_put_: (0, 2),
    aten.grid_sampler_2d: (0, 1),
    aten.grid_sampler_3d: (0, 1),
    aten._cdist_forward: (0, 1),
    aten.binary_cross_entropy: (0, 1),
    aten.nll_loss_forward: (0, 2),
    aten.nll_loss2d_forward: (0, 2),
}
_NORMS: dict[Any, Sequence[int]] = {  # the input, then its parameters: of its dtype, or float32 beside 16 bits
    aten.native_layer_norm: (0, 2, 3),
    aten.native_group_norm: (0, 1, 2),
    aten.native_batch_norm: (0, 1, 2),
}
_LABELS = {aten.nll_loss_forward: 1, aten.nll_loss2d_forward: 1}  # classes by number
_FLOATING = {aten.gelu, aten._softmax, aten._log_softmax, aten.silu, aten.elu, aten.softplus}  # no integers
_HALVES = (torch.float16, torch.bfloat16)


def check_dtypes(func: Any, args: Sequence[Any]) -> None:
    """Refuse what no kernel takes.

    Raises:
        TypeError: dtypes of the arguments don't go together.
    """
    packet = func.overloadpacket
    if packet in _ALIKE:
        found = _dtypes(args, _ALIKE[packet])
        if len(set(found)) > 1:
            raise TypeError(f"{packet} takes tensors of one dtype, not {_listed(found)}: cast one of them")
    if packet in _NORMS:
        first, *others = _dtypes(args, _NORMS[packet])
        wrong = [dtype for dtype in others if dtype != first and not (first in _HALVES and dtype is torch.float32)]
        if wrong:
            raise TypeError(f"{packet} of {_name(first)} can't have parameters of {_name(wrong[0])}: cast the input")
    if packet in _LABELS and args[_LABELS[packet]].dtype not in (torch.int64, torch.uint8):
        found = [args[_LABELS[packet]].dtype]
        raise TypeError(f"{packet} takes classes as int64 or uint8, not {_listed(found)}: call target.long()")
    if packet in _FLOATING and not (args[0].is_floating_point() or args[0].is_complex()):
        raise TypeError(f"{packet} takes no {_name(args[0].dtype)}: call x.float()")


def _dtypes(args: Sequence[Any], places: Sequence[int]) -> list[torch.dtype]:
    return [args[place].dtype for place in places if place < len(args) and isinstance(args[place], Tensor)]


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _listed(dtypes: Sequence[torch.dtype]) -> str:
    return " and ".join(map(_name, dict.fromkeys(dtypes)))
