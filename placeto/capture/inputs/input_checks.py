"""Checks of what a user gives to a capture, made before anything is traced."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from placeto.capture.inputs.arguments import plain
from placeto.capture.inputs.batch_dimension import batch_length, is_split
from placeto.capture.inputs.objects import hides_tensors, holds_tensors, opened
from placeto.capture.user_errors import NO_LAYOUT
from placeto.errors import CaptureError

# wrappers whose hooks on autograd's nodes, which a captured step leaves out, average gradients between processes
_AVERAGING = ("DistributedDataParallel", "FullyShardedDataParallel")


def check_module(module: object, name: str, training: bool = False) -> None:
    """Refuse what isn't a module that can be captured.

    Args:
        module: the module to capture.
        name: the name of the graph, for messages.
        training: whether the step has gradients: then a trainable module with sparse gradients is refused too.

    Raises:
        CaptureError: it isn't a module, it is scripted, compiled, quantised or data-parallel over processes, or one of
            its parameters or buffers is sparse, nested or of unknown shape.
    """
    if not isinstance(module, nn.Module):
        raise CaptureError(f"{name}: only a torch.nn.Module can be captured, not {describe(module)}")
    for path, part in module.named_modules():
        where = f"{name}: module {path!r} ({type(part).__name__})" if path else f"{name}: the module"
        if isinstance(part, torch.jit.ScriptModule):
            raise CaptureError(f"{where} is scripted: give the module that went into torch.jit.script or trace")
        if type(part).__name__ == "OptimizedModule":
            raise CaptureError(f"{where} is compiled: give the module that went into torch.compile")
        if training and type(part).__name__ in _AVERAGING:
            raise CaptureError(
                f"{where} averages gradients between processes, which a placed step doesn't do: give the module that "
                "went into it"
            )
        if any(isinstance(value, torch.ScriptObject) for value in vars(part).values()):
            raise CaptureError(
                f"{where} is quantised, which can't be captured: give the module as it was before it was quantised"
            )
        if training and getattr(part, "sparse", False) is True and _trains(part):
            raise CaptureError(f"{where} has sparse gradients, which can't be captured: make it with sparse=False")
        tensors = *part.named_parameters(recurse=False), *part.named_buffers(recurse=False)
        for attribute, tensor in tensors:
            if _is_without_strides(tensor):
                raise CaptureError(f"{where} has a {_layout(tensor)} tensor, {attribute!r}: {NO_LAYOUT}")
        if any(nn.parameter.is_lazy(tensor) for _, tensor in tensors):
            raise CaptureError(
                f"{where} has parameters of unknown shape: call the whole module once on its inputs first"
            )


def check_loss(loss: object, name: str) -> None:
    """Refuse a loss that can't be called.

    Raises:
        CaptureError: it is a class, or can't be called.
    """
    if isinstance(loss, type):
        raise CaptureError(f"{name}: the loss is the class {loss.__name__}: give an instance, {loss.__name__}()")
    if loss is not None and not callable(loss):
        advice = "; targets go into targets=[...]" if isinstance(loss, Tensor) else ""
        raise CaptureError(f"{name}: the loss must be a function of the module's output, not {describe(loss)}{advice}")


def check_arguments(inputs: object, targets: object, name: str) -> None:
    """Refuse inputs and targets that can't be given to a step.

    Raises:
        CaptureError: inputs are neither a sequence nor a mapping, targets are no sequence, a tensor among them is
            sparse or nested, or an object that can't be opened has tensors.
    """
    for role, values in (("inputs", inputs), ("targets", targets)):
        named = role == "inputs" and isinstance(values, Mapping)
        if isinstance(values, str | Tensor) or not (named or isinstance(values, Sequence)):
            raise CaptureError(f"{name}: {role} must be a sequence of arguments, such as [x], not {describe(values)}")
    arguments: Any = inputs, targets
    for leaf in tree_leaves(opened(tuple(map(plain, arguments)))):
        if isinstance(leaf, Tensor) and _is_without_strides(leaf):
            raise CaptureError(f"{name}: an argument is a {_layout(leaf)} tensor: {NO_LAYOUT}")
        if hides_tensors(leaf):
            raise CaptureError(
                f"{name}: an argument has a {type(leaf).__name__} with tensors, which can't be seen there: give them "
                "as arguments, or in a list, a dict or a dataclass"
            )


def check_split(inputs: Any, targets: Any, loss_tensors: Sequence[Tensor], count: object, name: str) -> None:
    """Refuse a number of micro-batches that is none, or into which the batch can't be split.

    Args:
        inputs: arguments of the module.
        targets: further arguments of the loss.
        loss_tensors: tensors that the loss reads without getting them as arguments.
        count: the number of micro-batches.
        name: the name of the graph, for messages.

    Raises:
        CaptureError: `count` is no whole number, or less than 1. Or there are several micro-batches, and there is no
            tensor to split, `count` doesn't divide the batch's length, an argument requires a gradient or is an object
            that holds tensors, an input might be a mask, of which a micro-batch of one sample would get a row that
            fits, or a tensor that the loss holds is as long as the batch.
    """
    if not isinstance(count, int) or isinstance(count, bool):
        raise CaptureError(f"{name}: micro_batches must be a whole number, not {count!r:.60}")
    if count == 1:
        return
    for leaf in tree_leaves((inputs, targets)):
        if isinstance(leaf, Tensor) and leaf.requires_grad:
            raise CaptureError(
                f"{name}: an input of shape {tuple(leaf.shape)} requires a gradient, which micro-batches don't give: "
                "detach it, and call x.requires_grad_() in forward if that needs it"
            )
        if not isinstance(leaf, Tensor) and holds_tensors(leaf):
            kind = type(leaf).__name__
            raise CaptureError(f"{name}: tensors in a {kind} can't be split into micro-batches: give them as arguments")
    if count < 1:
        raise CaptureError(f"{name}: micro_batches must be at least 1, not {count}")
    length = batch_length(inputs, targets)
    if not length:
        raise CaptureError(
            f"{name}: no input and no target is a tensor of samples, which micro-batches split: give one, with the "
            "batch first, or use micro_batches=1"
        )
    if length % count:
        raise CaptureError(
            f"{name}: a batch of {length} can't be split into {count} micro-batches of one size: give a number that "
            "divides it"
        )
    tensors = [leaf for leaf in tree_leaves(plain(inputs)) if isinstance(leaf, Tensor)]
    square = next((leaf for leaf in tensors[1:] if leaf.shape[:2] == (length, length)), None)
    if length == count and square is not None:
        raise CaptureError(
            f"{name}: an input of shape {tuple(square.shape)} is as long as the batch in two dimensions, as a mask is, "
            "and each micro-batch of 1 sample would get a row of it: choose another size of the batch, or fewer "
            "micro-batches"
        )
    for tensor in loss_tensors:
        if is_split(tensor, length):
            raise CaptureError(
                f"{name}: the loss uses a tensor of shape {tuple(tensor.shape)} that isn't an argument of it, so that "
                "micro-batches can't split it: give it as a target (a factory returns (module, inputs, loss, "
                "targets)), and the loss is called as loss(output, *targets); if it isn't of "
                "samples, make it a buffer of a loss that is a module"
            )


def _is_without_strides(tensor: Tensor) -> bool:
    return tensor.layout is not torch.strided or tensor.is_nested


def _layout(tensor: Tensor) -> str:
    return "nested" if tensor.is_nested else str(tensor.layout).removeprefix("torch.").removeprefix("_")


def _trains(part: nn.Module) -> bool:
    return any(parameter.requires_grad for parameter in part.parameters(recurse=False))


def describe(value: Any) -> str:
    """A phrase that says what a value is, for a message: its class, and the shape of a tensor."""
    if isinstance(value, type):
        return f"the class {value.__name__}: give an instance, {value.__name__}(...)"
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    name = "None" if value is None else type(value).__name__
    return name if value is None else f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"
