"""The arguments of a module, the call of a module with them, and the loss in what it returns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor, nn
from torch.utils._pytree import tree_flatten

from placeto.capture.inputs.objects import opened

Inputs = Sequence[Any] | Mapping[str, Any]
"""Arguments of a module: in order, or by name."""


def plain(values: Inputs) -> list[Any] | dict[str, Any]:
    """Arguments as a list, or as a dict by name."""
    return dict(values) if isinstance(values, Mapping) else list(values)


def call_module(module: Callable[..., Any], inputs: Inputs) -> Any:
    """What a module returns for arguments in order or by name."""
    return module(**inputs) if isinstance(inputs, Mapping) else module(*inputs)


def own_loss(output: Any) -> Any:
    """The loss that a module returns itself: ``["loss"]`` or ``.loss`` of its output, or the output if it has none."""
    if isinstance(output, Mapping):
        return output.get("loss", output)
    return output if isinstance(output, Tensor) else getattr(output, "loss", output)


def input_leaves(module: nn.Module, inputs: Inputs, targets: Sequence[Any] = ()) -> list[Any]:
    """The values of a traced step's placeholders, in their order: parameters, buffers, then leaves of the arguments."""
    tree = dict(module.named_parameters()), dict(module.named_buffers()), opened((plain(inputs), plain(targets)))
    return tree_flatten(tree)[0]
