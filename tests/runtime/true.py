"""Placed steps beside the module itself: shared by the tests of what a step keeps, and of what changes it."""

import copy
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

import placeto
from placeto import load_cluster, simulate
from placeto.capture.trace import Capture
from placeto.problem.problem import PlacementProblem
from placeto.runtime.executable import PlacedModule
from placeto.runtime.local_devices import LocalDevice
from tests.captures import assert_same_gradients, square

Loss = Callable[..., Tensor]


def step_of(module: nn.Module, inputs: Any, **options: Any) -> PlacedModule:
    """A module on two cores: its training step where there is a loss, else inference."""
    made: Any = placeto.place(module, inputs, cluster="2xv100", **{"placer": "roundrobin"} | options)
    return made.compile(devices=["cpu:0", "cpu:1"])


def placed(
    capture: Capture,
    inputs: Any,
    placement: ArrayLike,
    devices: Sequence[LocalDevice],
    targets: Sequence[Any] = (),
    cluster: str = "2xv100",
    **how: Any,
) -> PlacedModule:
    """A captured step on these devices of its ops, or on devices that are drawn by a seed."""
    problem = PlacementProblem(capture.graph, load_cluster(cluster))
    if np.ndim(placement) == 0:
        placement = np.random.default_rng(int(placement)).integers(2, size=problem.num_ops)
    return PlacedModule(capture, inputs, targets, simulate(problem, placement, **how), devices)


def assert_next_step(
    step: PlacedModule, module: nn.Module, twin: nn.Module, *given: Any, loss: Loss = square, **tolerance: float
) -> None:
    """A step of a module has the loss of its copy's step, to the bit, and then both have the same gradients.

    Args:
        step: of the module.
        module: which is placed.
        twin: its copy, which runs itself.
        *given: the module's only argument, and targets of the loss.
        loss: of the output and the targets.
        **tolerance: of gradients.
    """
    seed = torch.get_rng_state()
    made = step(*given)
    torch.set_rng_state(seed)
    wanted = loss(twin(given[0]), *given[1:])
    wanted.backward()
    assert torch.equal(made, wanted.detach())
    assert any(parameter.grad is not None for parameter in module.parameters())
    assert_same_gradients(module, twin, **tolerance)


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
