"""A string of all that decides how long a traced node takes: measured times are kept under it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

_NOT_SAID = {"device", "layout", "pin_memory"}  # where it runs, and what follows from that


def signature(node: Node) -> str:
    """The op with its arguments: dtype, shape and, if they aren't contiguous, strides of tensors; all else as it is.

    Named arguments that are None are left out, as it depends on how a trace was made whether they are there.

    >>> graph = torch.fx.Graph()
    >>> x = graph.placeholder("x")
    >>> x.meta["val"] = torch.empty(4, 8, device="meta").t()
    >>> signature(graph.call_function(torch.ops.aten.sum.dim_IntList, (x, [0], True)))
    'aten.sum.dim_IntList(f32[8,4]/[1,8],[0],True)'
    """
    arguments = [_described(argument) for argument in node.args]
    said = {key: value for key, value in node.kwargs.items() if key not in _NOT_SAID and value is not None}
    arguments += [f"{key}={_described(value)}" for key, value in said.items()]
    return f"{node.target}({','.join(arguments)})"


def _described(value: Any) -> str:
    if isinstance(value, Node):
        return _described(value.meta.get("val"))
    if isinstance(value, Tensor):
        shown = f"{_dtype(value.dtype)}{_numbers(value.shape)}"
        return shown if value.is_contiguous() else f"{shown}/{_numbers(value.stride())}"
    if isinstance(value, list | tuple):
        parts = list(map(_described, value))
        alike = len(parts) > 2 and len(set(parts)) == 1  # such as the tensors that are stacked
        return f"[{len(parts)}*{parts[0]}]" if alike else f"[{','.join(parts)}]"
    return str(value)


def _numbers(values: Any) -> str:
    return f"[{','.join(map(str, values))}]"


def _dtype(dtype: torch.dtype) -> str:
    """A short name of a dtype, such as f32, i64, bf16 or bool."""
    name = str(dtype).removeprefix("torch.")
    for long, short in (("bfloat", "bf"), ("uint", "u"), ("float", "f"), ("int", "i")):
        name = name.replace(long, short)
    return name
