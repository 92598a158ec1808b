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
        capture: the module's training step or inference; its parameters and buffers are moved to their devices.
        inputs: the inputs that the module was captured with.
        targets: the targets that the loss was captured with.
        schedule: where each op runs, and in which order on each device.
        devices: (D,) devices of this machine.

    Raises:
        RunError: the module has no values, on "meta"; or see `PlacedStep`.
    """

    def __init__(
        self,
        capture: Capture,
        inputs: Inputs,
        targets: Sequence[Any],
        schedule: Schedule,
        devices: Sequence[LocalDevice],
    ) -> None:
        self.module, self.capture = capture.whole.module, capture
        self.training = capture.graph.mode == "training"
        self.step = PlacedStep(capture, schedule, devices)
        self._given = inputs, targets, schedule
        self._lock = RLock()  # one step at a time
        self._named = list(inputs) if isinstance(plain(inputs), dict) else None
        self._count, self._targets = len(inputs), len(targets)
        leaves, self._spec = tree_flatten(opened((plain(inputs), plain(targets))))
        self._captured: dict[str | int, Any] = self._kinds({}, leaves)
        for path, node in zip(capture.paths, capture.traced.graph.find_nodes(op="placeholder"), strict=False):
            self._captured[path] = *_kind(node.meta["val"], False)[:2], path in capture.trained
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
            capture = copy.deepcopy(self.capture, memo)
        devices = open_devices([device.name for device in self.step.devices])
        return PlacedModule(capture, *self._given, devices)

    def _run(self, inputs: Inputs, targets: Sequence[Any]) -> Any:
        leaves, spec = tree_flatten(opened((plain(inputs), plain(targets))))
        name = self.capture.graph.name
        if spec != self._spec:
            how = f"{self._spec.num_leaves} values, nested in another way, or dicts with their keys in another order"
            raise RunError(f"{name} was captured with other arguments: {how}")
        named = self._own()
        self._check(named, leaves)
        values = [*named.values(), *leaves]
        self._check_memory(values)
        detached = [value.detach() if isinstance(value, Tensor) else value for value in values]
        outputs = self.step.run(detached)
        wanted = [named[path] for path in self.capture.trained]
        wanted += [leaf for leaf in leaves if self.training and isinstance(leaf, Tensor) and leaf.requires_grad]
        number = 1 + len(wanted) if self.training else 0
        main, returned = outputs[:number], outputs[number:]
        same = {id(copy): value for copy, value in zip(detached, values, strict=True) if isinstance(value, Tensor)}
        returned = [same.get(id(tensor), tensor) for tensor in returned]
        value = self.capture.rebuild(returned, (plain(inputs), plain(targets)))
        if not self.training:
            return value
        loss, *gradients = main
        add_gradients(wanted, gradients)
        return loss.reshape(())

    def _own(self) -> dict[str, Tensor]:
        """Return the module's present parameters and buffers, by path."""
        named = (*self.capture.whole.named_parameters(), *self.capture.whole.named_buffers())
        return {path.removeprefix("module."): tensor for path, tensor in named}

    def _check(self, named: dict[str, Tensor], leaves: Sequence[Any]) -> None:
        """Refuse to run if the step isn't the captured one any more, with the module and the arguments of now."""
        name, again = self.capture.graph.name, "place it again"
        if (kinds := self._kinds(named, leaves)) != self._captured:
            what = next(key for key in self._captured | kinds if kinds.get(key) != self._captured.get(key))
            was, now = (_told(each.get(what)) for each in (self._captured, kinds))
            where = quote(what) if isinstance(what, str) else f"value {what} of its arguments"
            raise RunError(f"{name} was captured with {was} as {where}, not {now}: give what it had then, or {again}")
        hooked = next((path for path in self.capture.trained if has_hooks(named[path])), None)
        if hooked is not None and self.capture.step.count > 1:
            raise RunError(
                f"{name}: parameter {quote(hooked)} has a hook, which would run once for each micro-batch: "
                "place it without micro-batches, or change gradients after the step"
            )
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

    def _kinds(self, named: dict[str, Tensor], leaves: Sequence[Any]) -> dict[str | int, Any]:
        """Return what the step is given: parameters and buffers by path, arguments by place."""
        kinds: dict[str | int, Any] = {place: _kind(leaf, self.training) for place, leaf in enumerate(leaves)}
        for path, tensor in named.items():
            kinds[path] = _kind(tensor, self.training and isinstance(tensor, nn.Parameter))
        return kinds

    def peak_bytes(self, *arguments: Any, **named: Any) -> tuple[Any, list[int]]:
        """Run a step; return its value, and for each device the most bytes of its tensors, counted after every op.

        Parameters, their gradients, buffers and inputs don't count. Call this while all gradients are None. CPU cores
        otherwise share the tensors that go from one to another. Here they get copies, as devices with memory of their
        own do.
        """
        whole = self.capture.whole
        known = [leaf for leaf in input_leaves(whole, *self._split(arguments, named)) if isinstance(leaf, Tensor)]
        self.step.check_process()
        with self._lock:
            self.step.meters[:] = meters = [Meter(known) for _ in self.step.devices]
            try:
                value = self(*arguments, **named)
            finally:
                self.step.meters.clear()
        gradients = [parameter.grad for parameter in whole.parameters() if parameter.grad is not None]
        return value, [meter.peak(gradients) for meter in meters]

    def _split(self, arguments: Sequence[Any], named: dict[str, Any]) -> tuple[Inputs, Sequence[Any]]:
        """Return the inputs and the targets among the arguments of a call."""
        names, by_place = self._named or [], self._count if self._named is None else 0
        if set(named) != set(names) or len(arguments) != by_place + self._targets:
            inputs = f"{self._count} inputs" if self._named is None else f"{', '.join(names)} by name"
            given = f"{len(arguments)} and {', '.join(named)} by name" if named else str(len(arguments))
            raise RunError(f"{self.capture.graph.name} takes {inputs} and {self._targets} targets, not {given}")
        inputs_given = arguments[:by_place] if self._named is None else {key: named[key] for key in names}
        return inputs_given, arguments[by_place:]


def _kind(value: Any, trained: bool) -> Any:
    """Return what must be as at the capture: shape and dtype of a tensor, and whether it asks for a gradient.

    Of an array there is also a digest of its values, and any other value is described by itself.
    """
    if isinstance(value, Tensor):
        return value.shape, value.dtype, trained and value.requires_grad
    if isinstance(value, np.ndarray):
        digest = sha256(np.ascontiguousarray(value).tobytes()).hexdigest()[:8]
        return f"an array {value.shape} of {value.dtype} with values {digest}"
    return repr(value)


def _told(kind: Any) -> str:
    """Return words for what `_kind` returned; None is for what is missing."""
    if not isinstance(kind, tuple):
        return kind or "nothing"
    shape, dtype, requires_grad = kind
    gradient = " that requires a gradient" if requires_grad else ""
    return f"a tensor {tuple(shape)} of {str(dtype).removeprefix('torch.')}{gradient}"
