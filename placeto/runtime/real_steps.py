"""A captured step with real values for its inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from placeto.capture.inputs.arguments import Inputs, call_module, input_leaves, own_loss
from placeto.capture.trace import Capture, trace_inference, trace_training
from placeto.capture.tracing.precision import autocast
from placeto.errors import RunError
from placeto.problem.messages import quote
from placeto.runtime.unrolled import unrolled

StepError = RunError  # its name before, for one version


_EMPTY = {torch.ops.aten.empty.memory_format, torch.ops.aten.empty_strided.default}


@dataclass(frozen=True, eq=False)
class RealStep:
    """A step that can be run: captured, with all its inputs, on the CPU."""

    name: str
    capture: Capture
    leaves: tuple[Any, ...]  # values that go in, in the order of the trace's placeholders
    eager: Callable[[], Any] | None  # the same step, run by the module itself; None = it isn't

    @cached_property
    def unrolled(self) -> Capture:
        """The capture with the trace of all micro-batches."""
        return unrolled(self.capture)

    @cached_property
    def measurable(self) -> dict[str, int]:
        """Name of a traced node -> the op that it computes, for ops whose times are kept under a signature."""
        named = self.capture.graph.signatures
        return {names[0]: op for op, names in enumerate(self.unrolled.nodes) if named[op]}


def real_training(
    module: nn.Module,
    inputs: Inputs,
    loss: Callable[..., Tensor] | None = None,
    *,
    targets: Sequence[Any] = (),
    name: str | None = None,
    precision: str = "fp32",
    micro_batches: int = 1,
) -> RealStep:
    """Capture a training step that can be run; see `placeto.capture.trace.trace_training`.

    Raises:
        CaptureError: the step can't be captured.
        RunError: a tensor isn't on the CPU, such as on "meta", where nothing can be run.
    """
    how: dict[str, Any] = {"name": name, "precision": precision, "micro_batches": micro_batches}
    capture = trace_training(module, inputs, loss, targets=targets, **how)
    trained = [parameter for parameter in capture.whole.parameters() if parameter.requires_grad]

    def eager() -> Any:
        with torch.enable_grad():
            with autocast(precision):
                output = call_module(module, inputs)
                value = own_loss(output) if loss is None else loss(output, *targets)
            return torch.autograd.grad(value.reshape(()), trained, allow_unused=True)

    return real_step(capture, inputs, targets, eager)


def real_inference(
    module: nn.Module,
    inputs: Inputs,
    *,
    name: str | None = None,
    precision: str = "fp32",
    micro_batches: int = 1,
) -> RealStep:
    """Capture an inference that can be run; see `placeto.capture.trace.trace_inference`.

    The module is put into evaluation mode.

    Raises:
        CaptureError, RunError: as `real_training`.
    """
    module.eval()
    capture = trace_inference(module, inputs, name=name, precision=precision, micro_batches=micro_batches)

    def eager() -> Any:
        with autocast(precision):
            return call_module(module, inputs)

    return real_step(capture, inputs, (), eager)


def real_step(
    capture: Capture, inputs: Inputs, targets: Sequence[Any], eager: Callable[[], Any] | None = None
) -> RealStep:
    """Return a captured step with its values, and with copies of the buffers, because steps change them.

    Raises:
        RunError: a tensor isn't on the CPU, such as on "meta", where nothing can be run.
    """
    whole = capture.whole
    leaves = [leaf.detach() if isinstance(leaf, Tensor) else leaf for leaf in input_leaves(whole, inputs, targets)]
    first = len(list(whole.parameters()))
    for place in range(first, first + len(list(whole.buffers()))):
        leaves[place] = leaves[place].clone()
    for leaf in leaves:
        if isinstance(leaf, Tensor) and leaf.device.type != "cpu":
            what = f"a tensor of shape {tuple(leaf.shape)} is on {quote(str(leaf.device))}"
            raise RunError(f"{capture.graph.name}: {what}: to be run, all must be on the cpu")
    return RealStep(capture.graph.name, capture, tuple(leaves), eager)


def filled() -> AbstractContextManager[None]:
    """A context that fills `torch.empty`: uninitialised numbers may be slow to compute with, or invalid as indices.

    >>> with filled():
    ...     torch.empty(2, dtype=torch.int64)
    tensor([0, 0])
    """
    return _Filled()


class _Filled(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func in _EMPTY and result.device.type != "meta":
            result = result.normal_() if result.is_floating_point() else result.zero_()
        return result
