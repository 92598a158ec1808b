"""Counts the bytes of the tensors that are alive while a program runs, op by op."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from placeto.runtime.measuring.meter import Meter


def peak_of_training_step(
    module: nn.Module,
    inputs: list[Tensor],
    loss: Callable[..., Tensor],
    targets: list[Tensor],
    there: Sequence[Tensor] = (),
) -> int:
    """Most bytes of all that one step makes but the gradients of parameters, while it runs on the cpu.

    Gradients that are `there` before, like other such tensors, don't count, but what is added to them does. Recurrent
    layers do as they do without oneDNN, whose own op for an LSTM needs more.
    """
    enabled = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)
    try:
        with Meter([*module.parameters(), *module.buffers(), *inputs, *targets, *there]) as meter:
            loss(module(*inputs), *targets).backward()
    finally:
        torch._C._set_mkldnn_enabled(enabled)
    return meter.peak([p.grad for p in module.parameters() if p.grad is not None])
