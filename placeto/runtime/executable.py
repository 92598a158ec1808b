"""A placed module as a callable: a training step that leaves gradients, or inference.

step = placed.compile()
for inputs, targets in batches:
    optimizer.zero_grad()
    loss = step(*inputs, *targets)
    optimizer.step()
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten

from placeto.capture.arguments import Inputs, input_leaves, plain
from placeto.capture.trace import Capture
from placeto.problem.fields import quote
from placeto.runtime.devices import LocalDevice
from placeto.runtime.meter import Meter
from placeto.runtime.placed import PlacedStep, RunError


class PlacedModule:
    """A module whose training step, or inference, runs on several devices as it was placed.

    A training step is called with what the module was captured with, then the targets of the loss; it returns the loss,
    and adds gradients to the ``.grad`` of the module's parameters as ``backward()`` does. Inference returns what the
    module returns. The module's parameters and buffers of the moment are used, and buffers such as running means are
    updated. All tensors must have the shapes and dtypes of the capture. Without random numbers loss and gradients on
    CPU cores are those of the module itself on one thread (with oneDNN off for recurrent layers), to the bit.

    Args:
        module: what was captured; its parameters are moved to their devices.
        capture: its training step or inference.
        inputs: what it was captured with.
        targets: likewise, of the loss.
        placement: (N,) device of each op, a number.
        order: (D,) the ops of each device as it runs them.
        devices: (D,) of this machine.
    """

    def __init__(
        self,
        module: nn.Module,
        capture: Capture,
        inputs: Inputs,
        targets: Sequence[Any],
        placement: np.ndarray,
        order: Sequence[Sequence[int] | np.ndarray],
        devices: Sequence[LocalDevice],
    ) -> None:
        self.module, self.capture = module, capture
        self.training = capture.graph.mode == "training"
        self.step = PlacedStep(capture, placement, order, devices)
        self._named = list(inputs) if isinstance(plain(inputs), dict) else None
        self._count, self._targets = len(inputs), len(targets)
        leaves, self._spec = tree_flatten((plain(inputs), plain(targets)))
        self._expected = [_kind(leaf) for leaf in leaves]
        self._parameters = list(module.parameters())
        self._trained = [p for p in self._parameters if p.requires_grad]
        nodes = {node.name: node for node in capture.traced.graph.nodes}
        places = {node: i for i, node in enumerate(n for n in nodes.values() if n.op == "placeholder")}
        for op, names in enumerate(capture.nodes):  # CPU tensors are where they must be
            if (place := places.get(nodes[names[0]], len(places))) < len(self._parameters):
                home = devices[int(placement[op])].torch_device
                self._parameters[place].data = self._parameters[place].data.to(home)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """One step.

        Raises:
            RunError: other arguments than were captured, or an op fails.
        """
        inputs, targets = self._split(arguments, named)
        leaves, spec = tree_flatten((plain(inputs), plain(targets)))
        name = self.capture.graph.name
        if spec != self._spec:
            raise RunError(f"{name} was captured with other arguments: {self._spec.num_leaves} values, in another nest")
        for number, (leaf, expected) in enumerate(zip(leaves, self._expected, strict=True)):
            if (found := _kind(leaf)) != expected:
                raise RunError(f"{name} was captured with {expected} as value {number} of its arguments, not {found}")
        values = input_leaves(self.module, inputs, targets)
        outputs = self.step.run([value.detach() if isinstance(value, Tensor) else value for value in values])
        if not self.training:
            return self.capture.rebuild(outputs)
        loss, *gradients = outputs
        with torch.no_grad():
            self._add(gradients)
        return loss.reshape(())

    def peak_bytes(self, *arguments: Any, **named: Any) -> tuple[Any, list[int]]:
        """What a step returns, and for each device the most bytes of its tensors, which are counted after every op.

        Parameters, their gradients, buffers and inputs don't count. To be called while gradients are None.
        """
        known = [leaf for leaf in input_leaves(self.module, *self._split(arguments, named)) if isinstance(leaf, Tensor)]
        self.step.meters = [Meter(known) for _ in self.step.devices]
        try:
            value = self(*arguments, **named)
        finally:
            meters, self.step.meters = self.step.meters, None
        gradients = [parameter.grad for parameter in self._trained if parameter.grad is not None]
        return value, [meter.peak(gradients) for meter in meters]

    def _split(self, arguments: Sequence[Any], named: dict[str, Any]) -> tuple[Inputs, Sequence[Any]]:
        if self._named is not None:
            wrong = set(named) ^ set(self._named)
            if wrong:
                takes = f"{self.capture.graph.name} takes {', '.join(self._named)} by name"
                raise RunError(f"{takes}, not {quote(min(wrong))}" if wrong - set(self._named) else takes)
            return {key: named[key] for key in self._named}, arguments
        if named or len(arguments) != self._count + self._targets:
            given = f"{len(arguments)} and {len(named)} by name" if named else str(len(arguments))
            raise RunError(
                f"{self.capture.graph.name} takes {self._count} inputs and {self._targets} targets, not {given}"
            )
        return arguments[: self._count], arguments[self._count :]

    def _add(self, gradients: Sequence[Tensor | None]) -> None:
        """Add gradients to those of the parameters; one that shares its memory is copied."""
        taken: set[int] = set()
        for parameter, gradient in zip(self._trained, gradients, strict=True):
            if gradient is None:
                continue
            if parameter.grad is not None:
                parameter.grad += gradient
                continue
            storage = gradient.untyped_storage()
            own = storage.data_ptr() not in taken and storage.nbytes() == gradient.numel() * gradient.element_size()
            taken.add(storage.data_ptr())
            same = gradient.stride() == parameter.stride()
            parameter.grad = gradient.detach() if own and same else torch.empty_like(parameter).copy_(gradient)


def _kind(leaf: Any) -> str:
    """What a step was captured with: shape and dtype of a tensor, another value itself."""
    if isinstance(leaf, Tensor):
        return f"a tensor {tuple(leaf.shape)} of {str(leaf.dtype).removeprefix('torch.')}"
    return repr(leaf)
