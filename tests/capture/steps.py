"""A training step to capture, and the same step as PyTorch runs it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from placeto.capture.arguments import call_module, own_loss
from placeto.capture.costs import FORMULAS


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


def run_eagerly(step: Step) -> tuple[Tensor, int]:
    """Loss and FLOPs of a step; gradients stay with the parameters."""
    formulas: dict[Any, Callable[..., int]] = {packet: _raw(formula) for packet, formula in FORMULAS.items()}
    with FlopCounterMode(display=False, custom_mapping=formulas) as counter:
        output = call_module(step.module, step.inputs)
        loss = own_loss(output) if step.loss is None else step.loss(output, *step.targets)
        loss.backward()
    return loss.detach(), counter.get_total_flops()


def _raw(formula: Callable[..., int]) -> Callable[..., int]:
    def call(*args: Any, **kwargs: Any) -> int:
        return formula(*args, **kwargs)

    call._get_raw = True  # type: ignore[attr-defined]
    return call
