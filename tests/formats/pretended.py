"""Devices that only pretend to be some: tensors on them have values, and refuse to meet those of other devices.

So what `accelerate` does for several GPUs runs on a machine without any: ``tensor.to("pretended:1")`` moves a tensor,
and so does ``tensor.to(1)``. An op that reads tensors of two devices raises, as on GPUs.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

NAME = "pretended"


class Pretended(Tensor):
    """A tensor whose values are on the CPU, whatever its device says."""

    values: Tensor

    @staticmethod
    def __new__(cls, values: Tensor, number: int) -> Pretended:
        made: Pretended = Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls, values.size(), strides=values.stride(), dtype=values.dtype, device=torch.device(NAME, number)
        )
        made.values = values
        return made

    @classmethod
    def __torch_dispatch__(cls, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        tensors = [leaf for leaf in tree_leaves((args, kwargs or {})) if isinstance(leaf, Tensor)]
        plain, named = tree_map(lambda leaf: leaf.values if isinstance(leaf, cls) else leaf, (args, kwargs or {}))
        if op.overloadpacket is torch.ops.aten.copy_:
            plain[0].copy_(*plain[1:])
            return args[0]
        devices = {tensor.device for tensor in tensors if tensor.device.type != "cpu" or tensor.dim()}
        given = named.pop("device", None)
        if len(devices) > 1:
            raise RuntimeError(f"{op}: Expected all tensors to be on the same device, but found {devices}")
        device = given or devices.pop()
        if device.type != NAME:
            return op(*plain, **named).clone()
        result = op(*plain, **named, **({"device": "cpu"} if given else {}))
        if op.__name__.split(".")[0].endswith("_"):
            return args[0]
        return tree_map(lambda leaf: cls(leaf, device.index or 0) if isinstance(leaf, Tensor) else leaf, result)


@cache
def pretend() -> torch.library.Library:
    """Register the devices, once for a process; the result must be kept."""
    _setup_privateuseone_for_python_backend(NAME)
    library = torch.library.Library("aten", "IMPL")

    def strided(size: Any, stride: Any, *, dtype: Any = None, device: Any = None, **rest: Any) -> Tensor:
        return Pretended(torch.empty_strided(size, stride, dtype=dtype), device.index or 0)

    def empty(size: Any, *, dtype: Any = None, device: Any = None, **rest: Any) -> Tensor:
        return Pretended(torch.empty(size, dtype=dtype), device.index or 0)

    library.impl("empty_strided", strided, "PrivateUse1")
    library.impl("empty.memory_format", empty, "PrivateUse1")
    return library
