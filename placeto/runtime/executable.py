"""A placed module as a callable: a training step that leaves gradients, or inference.

step = placed.compile()
for inputs, targets in batches:
    optimizer.zero_grad()
    loss = step(*inputs, *targets)
    optimizer.step()
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from hashlib import sha256
from threading import RLock
from typing import Any

import numpy as np
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten

from placeto.capture.inputs.arguments import Inputs, input_leaves, plain
from placeto.capture.inputs.objects import opened
from placeto.capture.trace import Capture
from placeto.errors import RunError
from placeto.problem.messages import quote
from placeto.runtime.gradients import add_gradients, has_hooks
from placeto.runtime.local_devices import LocalDevice, open_devices
from placeto.runtime.measuring.meter import Meter
from placeto.runtime.placed import PlacedStep
from placeto.simulator.schedule import Schedule


class PlacedModule:
    """A module whose training step, or inference, runs on several devices as it was placed.

    A training step is called with the module's inputs, then the targets of the loss. It returns the loss, and adds
    gradients to the ``.grad`` of the module's parameters as ``backward()`` does. Inference returns what the module
    returns. Each call uses the present values of parameters and buffers, and updates buffers such as running means. All
    tensors must have the shapes and dtypes of the capture. Without random numbers, loss and gradients on CPU cores are
    those of the module itself on one thread (with oneDNN off for recurrent layers), to the bit.

    Args:
        module: the captured module; its parameters and buffers are moved to their devices.
        capture: the module's training step or inference.
        inputs: the inputs that the module was captured with.
        targets: the targets that the loss was captured with.
        schedule: where each op runs, and in which order on each device.
        devices: (D,) devices of this machine.

    Raises:
        RunError: the module has no values, on "meta"; or see `PlacedStep`.
    """

    def __init__(
        self,
        module: nn.Module,
        capture: Capture,
        inputs: Inputs,
        targets: Sequence[Any],
        schedule: Schedule,
        devices: Sequence[LocalDevice],
    ) -> None:
        self.module, self.capture = module, capture
        self.training = capture.graph.mode == "training"
        self.step = PlacedStep(capture, schedule, devices)
        self._given = inputs, targets, schedule
        self._lock = RLock()  # one step at a time
        self._whole = capture.of(module)
        self._named = list(inputs) if isinstance(plain(inputs), dict) else None
        self._count, self._targets = len(inputs), len(targets)
        leaves, self._spec = tree_flatten(opened((plain(inputs), plain(targets))))
        self._expected = [_kind(leaf) for leaf in leaves]
        self._requires_grad = [isinstance(leaf, Tensor) and leaf.requires_grad for leaf in leaves]
        self._prefix = "" if self._whole is module else "module."
        inputs_of = [node.meta["val"] for node in capture.traced.graph.nodes if node.op == "placeholder"]
        self._tensors = {path: _like(tensor) for path, tensor in zip(capture.paths, inputs_of, strict=False)}
        tensors = list(self._own().items())
        for path, tensor in tensors:
            if tensor.is_meta:
                raise RunError(f"{path} is on 'meta', where nothing can be run: build the module on the cpu")
        for place, home in self.step.homes.items():  # tensors for the CPU are there already
            _, tensor = tensors[place]
            tensor.data = tensor.data.to(home)
            tensor.grad = None if tensor.grad is None else tensor.grad.to(home)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Run one step; if another thread is running one, wait for its end first.

        Raises:
            RunError: the arguments differ from the captured ones, the module was changed since, or an op fails.
        """
        self.step.check_process()
        with self._lock:
            return self._run(*self._split(arguments, named))

    def __deepcopy__(self, memo: dict[int, Any]) -> PlacedModule:
        """Return the same step for a deep copy of the module, on the same devices.

        The copy has parameters and buffers of its own, and is captured anew. If the loss is a function, both share what
        it closes over, as always in Python.

        Raises:
            CaptureError: the step of the copy differs from that of the module.
        """
        with self._lock:
            capture, module = copy.deepcopy((self.capture, self.module), memo)
        devices = open_devices([device.name for device in self.step.devices])
        return PlacedModule(module, capture, *self._given, devices)

    def _run(self, inputs: Inputs, targets: Sequence[Any]) -> Any:
        leaves, spec = tree_flatten(opened((plain(inputs), plain(targets))))
        name = self.capture.graph.name
        if spec != self._spec:
            how = f"{self._spec.num_leaves} values, nested in another way, or dicts with their keys in another order"
            raise RunError(f"{name} was captured with other arguments: {how}")
        for number, (leaf, expected) in enumerate(zip(leaves, self._expected, strict=True)):
            if (kind := _kind(leaf)) != expected:
                raise RunError(f"{name} was captured with {expected} as value {number} of its arguments, not {kind}")
        named = self._own()
        self._check(named, leaves)
        values = [*named.values(), *leaves]
        self._check_memory(values)
        detached = [value.detach() if isinstance(value, Tensor) else value for value in values]
        outputs = self.step.run(detached)
        trained = self.capture.trained
        number = 1 + len(trained) + self.capture.input_gradients if self.training else 0
        main, returned = outputs[:number], outputs[number:]
        same = {id(copy): value for copy, value in zip(detached, values, strict=True) if isinstance(value, Tensor)}
        returned = [same.get(id(tensor), tensor) for tensor in returned]
        if not self.training:
            return self.capture.rebuild(returned, (plain(inputs), plain(targets)))
        if returned:
            self.capture.rebuild(returned, (plain(inputs), plain(targets)))
        loss, *gradients = main
        wanted = [named[path] for path in trained]
        wanted += [leaf for leaf, requires_grad in zip(leaves, self._requires_grad, strict=True) if requires_grad]
        add_gradients(wanted, gradients, len(trained))
        return loss.reshape(())

    def _own(self) -> dict[str, Tensor]:
        """Return the module's present parameters and buffers, by path."""
        named = (*self._whole.named_parameters(), *self._whole.named_buffers())
        return {path.removeprefix(self._prefix): tensor for path, tensor in named}

    def _check(self, named: dict[str, Tensor], leaves: Sequence[Any]) -> None:
        """Refuse to run if the module's step isn't the captured one any more."""
        name, again = self.capture.graph.name, "place it again"
        if named.keys() != self._tensors.keys():
            path = min(named.keys() ^ self._tensors.keys())
            raise RunError(f"{name} has other parameters or buffers than it was captured with, {quote(path)}: {again}")
        for path, tensor in named.items():
            if _like(tensor) != self._tensors[path]:
                now = f"{quote(path)} is {_kind(tensor)} now"
                raise RunError(f"{name} was captured with other parameters or buffers, {now}: {again}")
        if self.training:
            self._check_gradients(named, leaves)
        if elsewhere := self.capture.changes.elsewhere():
            how = "call it as it was captured, or place it with the precision that you want, as precision='bf16'"
            raise RunError(f"{name} {elsewhere}, where it computes something else: {how}")
        if change := self.capture.changes.change():
            raise RunError(f"{name} was changed since it was captured, {change}: {again}, or change it back")

    def _check_memory(self, values: Sequence[Any]) -> None:
        """Refuse tensors that share memory if the step changes one of them: it would read the others unchanged."""
        if places := self.step.shared(values):
            paths = self.capture.paths
            changed, sharing = (
                quote(paths[p]) if p < len(paths) else f"value {p - len(paths)} of its arguments" for p in places
            )
            raise RunError(
                f"{self.capture.graph.name} changes {changed} in place, and {sharing} shares its memory, which a "
                "placed step doesn't follow: give one of them memory of its own, by .clone()"
            )

    def _check_gradients(self, named: dict[str, Tensor], leaves: Sequence[Any]) -> None:
        name, captured = self.capture.graph.name, self.capture.trained
        trained = {path for path, tensor in named.items() if tensor.requires_grad and isinstance(tensor, nn.Parameter)}
        if changed := trained.symmetric_difference(captured):
            path = min(changed)
            how = "trainable" if path in trained else "frozen"
            raise RunError(f"{name}: parameter {quote(path)} is {how} now, and wasn't when captured: place it again")
        for number, (leaf, required) in enumerate(zip(leaves, self._requires_grad, strict=True)):
            if isinstance(leaf, Tensor) and leaf.requires_grad != required:
                how = "that requires" if required else "that doesn't require"
                raise RunError(f"{name} was captured with a tensor {how} a gradient as value {number} of its arguments")
        hooked = next((path for path in captured if has_hooks(named[path])), None)
        if hooked is not None and self.capture.step.count > 1:
            raise RunError(
                f"{name}: parameter {quote(hooked)} has a hook, which would run once for each micro-batch: "
                "place it without micro-batches, or change gradients after the step"
            )

    def peak_bytes(self, *arguments: Any, **named: Any) -> tuple[Any, list[int]]:
        """Run a step; return its value, and for each device the most bytes of its tensors, counted after every op.

        Parameters, their gradients, buffers and inputs don't count. Call this while all gradients are None. CPU cores
        otherwise share the tensors that go from one to another. Here they get copies, as devices with memory of their
        own do.
        """
        known = [leaf for leaf in input_leaves(self._whole, *self._split(arguments, named)) if isinstance(leaf, Tensor)]
        self.step.check_process()
        with self._lock:
            self.step.meters[:] = meters = [Meter(known) for _ in self.step.devices]
            try:
                value = self(*arguments, **named)
            finally:
                self.step.meters.clear()
        gradients = [parameter.grad for parameter in self._whole.parameters() if parameter.grad is not None]
        return value, [meter.peak(gradients) for meter in meters]

    def _split(self, arguments: Sequence[Any], named: dict[str, Any]) -> tuple[Inputs, Sequence[Any]]:
        if self._named is not None:
            wrong = set(named) ^ set(self._named)
            if wrong:
                takes = f"{self.capture.graph.name} takes {', '.join(self._named)} by name"
                raise RunError(f"{takes}, not {quote(min(wrong))}" if wrong - set(self._named) else takes)
            if len(arguments) != self._targets:
                takes = f"{self.capture.graph.name} takes inputs by name and {self._targets} targets by position"
                raise RunError(f"{takes}, not {len(arguments)}")
            return {key: named[key] for key in self._named}, arguments
        if named or len(arguments) != self._count + self._targets:
            number = f"{len(arguments)} and {len(named)} by name" if named else str(len(arguments))
            raise RunError(
                f"{self.capture.graph.name} takes {self._count} inputs and {self._targets} targets, not {number}"
            )
        return arguments[: self._count], arguments[self._count :]


def _like(tensor: Tensor) -> tuple[Any, ...]:
    return tensor.shape, tensor.dtype


def _kind(leaf: Any) -> str:
    """Describe an argument: a tensor by shape and dtype, an array also by a digest, and another value by itself."""
    if isinstance(leaf, Tensor):
        return f"a tensor {tuple(leaf.shape)} of {str(leaf.dtype).removeprefix('torch.')}"
    if isinstance(leaf, np.ndarray):
        digest = sha256(np.ascontiguousarray(leaf).tobytes()).hexdigest()[:8]
        return f"an array {leaf.shape} of {leaf.dtype} with values {digest}"
    return repr(leaf)
