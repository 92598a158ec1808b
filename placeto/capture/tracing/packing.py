"""Lets models of Hugging Face's transformers find out, while they are traced, whether sequences are packed together.

Several sequences may be packed into one row. In eager execution, these models find that out from the positions of the
tokens. If each row is one sequence, they leave the causal mask to the attention kernel. Tensors of a trace have no
values, so the models would make masks of L x L numbers for L tokens. But positions that depend on no input can be
computed, and are computed here.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.fx import Node
from torch.fx.node import map_arg
from torch.utils._python_dispatch import _disable_current_modes

from placeto.capture.tracing.dependencies import needed_by

_WHERE, _FIND = "transformers.masking_utils", "find_packed_sequence_indices"


def packing_seen(nodes: Mapping[Tensor, Node]) -> AbstractContextManager[Any]:
    """A context in which transformers find one sequence in each row, if positions that depend on no input say so.

    Args:
        nodes: the node of each tensor that has been recorded.
    """
    module = sys.modules.get(_WHERE)
    find = getattr(module, _FIND, None)
    if find is None:
        return nullcontext()

    def find_by_values(position_ids: Tensor) -> Tensor | None:
        node = nodes.get(position_ids)
        with _disable_current_modes():
            positions = None if node is None else _value(node)
            if positions is not None and find(positions) is None:
                return None
        return find(position_ids)

    return patch.object(module, _FIND, find_by_values)


def _value(node: Node) -> Tensor | None:
    """The tensor that a node computes; None if it depends on inputs, constants, random numbers or in-place changes."""
    needed = needed_by([node])
    if any(call.op != "call_function" or _drawn(call) or _changed(call) for call in needed):
        return None
    values: dict[Node, Tensor] = {}
    for call in sorted(needed):  # in the order in which they were recorded
        arguments, options = map_arg((call.args, call.kwargs), values.__getitem__)
        values[call] = call.target(*arguments, **options)  # type: ignore[operator]
    return values[node]


def _drawn(node: Node) -> bool:
    return isinstance(node.target, OpOverload) and torch.Tag.nondeterministic_seeded in node.target.tags


def _changed(node: Node) -> bool:
    """Whether an op that changes a tensor is given what a node makes, or a view of it."""
    stack = [node]
    while stack:
        for user in stack.pop().users:
            schema = user.target._schema if isinstance(user.target, OpOverload) else None
            if schema is not None and schema.is_mutable:
                return True
            if schema is None or any(result.alias_info is not None for result in schema.returns):  # a view, or an item
                stack.append(user)
    return False
