"""Placed steps beside the module itself: shared by the tests of what a step keeps, and of what changes it."""

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

import placeto
from placeto.runtime.executable import PlacedModule
from tests.captures import assert_same_gradients, square

Loss = Callable[..., Tensor]


def step_of(module: nn.Module, inputs: Any, **options: Any) -> PlacedModule:
    """A module on two cores: its training step where there is a loss, else inference."""
    made: Any = placeto.place(module, inputs, cluster="2xv100", placer="roundrobin", **options)
    return made.compile(devices=["cpu:0", "cpu:1"])


def assert_as_eager(
    module: nn.Module,
    inputs: Sequence[Any],
    loss: Loss = square,
    *,
    steps: int = 2,
    each: Callable[[nn.Module], object] = lambda module: None,
    zero: bool = True,
) -> None:
    """Loss, gradients, parameters and buffers of some steps are those of a copy that runs itself, to the bit.

    Args:
        module: of a training step.
        inputs: arguments.
        loss: of the output.
        steps: how many.
        each: what is done to the module and to its copy before they are placed.
        zero: set gradients to None before every step.
    """
    other = copy.deepcopy(module)
    for one in (module, other):
        each(one)
    step = step_of(module, inputs, loss=loss)
    for _ in range(steps):
        if zero:
            for one in (module, other):
                one.zero_grad()
        made = step(*inputs)
        wanted = loss(other(*inputs))
        wanted.backward()
        assert torch.equal(made, wanted.detach())
        assert_same_gradients(module, other)
        for tensors in (nn.Module.parameters, nn.Module.buffers):
            assert all(map(torch.equal, tensors(module), tensors(other)))
