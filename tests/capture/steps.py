"""A training step to capture, and the same step as PyTorch runs it."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from torch import Tensor, nn

from placeto.capture.inputs.arguments import call_module, own_loss


class Step(NamedTuple):
    """A module with what one step of its training takes; without a loss it gives one itself."""

    module: nn.Module
    inputs: Any
    loss: Callable[..., Tensor] | None = None
    targets: Sequence[Any] = ()


class Entry(NamedTuple):
    """One of the zoo."""

    make: Callable[[], Step]
    run: bool = False  # whether sizes depend on values, so that it must be run to be captured
    package: str = "torch"  # which it needs


def run_eagerly(step: Step) -> Tensor:
    """Loss of a step; gradients stay with the parameters."""
    output = call_module(step.module, step.inputs)
    loss = own_loss(output) if step.loss is None else step.loss(output, *step.targets)
    loss.backward()
    return loss.detach()
