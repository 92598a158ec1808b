"""Counts the bytes of the tensors that are alive while a program runs, op by op."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from placeto.runtime.meter import Meter


def peak_of_training_step(
    module: nn.Module, inputs: list[Tensor], loss: Callable[..., Tensor], targets: list[Tensor]
) -> int:
    """Most bytes of all that one step makes but the gradients of parameters, while it runs on the cpu."""
    with Meter([*module.parameters(), *module.buffers(), *inputs, *targets]) as meter:
        loss(module(*inputs), *targets).backward()
    return meter.peak([p.grad for p in module.parameters() if p.grad is not None])
