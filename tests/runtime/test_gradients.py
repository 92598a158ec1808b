"""Hooks of parameters, gradients of inputs, and losses with parameters: as in a backward pass, to the bit."""

import copy
import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from placeto.errors import CaptureError, RunError
from placeto.runtime.gradients import add_gradients
from tests.captures import Made, square
from tests.runtime.true import assert_as_eager, step_of


def tied() -> Made:
    module = Made(lambda self, x: self.b(self.a(x).tanh()), a=nn.Linear(4, 4), b=nn.Linear(4, 4))
    module.b.weight = module.a.weight
    return module


def scale(module: Any) -> None:
    module.a.weight.register_hook(lambda gradient: gradient * 0.3)


def clamp(module: Any) -> None:
    for parameter in module.parameters():
        parameter.register_hook(lambda gradient: gradient.clamp(-0.01, 0.01))


def step_in_backward(module: Any) -> None:
    def update(parameter: Tensor) -> None:
        with torch.no_grad():
            parameter.sub_(parameter.grad, alpha=0.1)  # type: ignore[arg-type]
        parameter.grad = None

    for parameter in module.parameters():
        parameter.register_post_accumulate_grad_hook(update)


@pytest.mark.parametrize("hook", [scale, clamp, step_in_backward])
@pytest.mark.parametrize("zero", [True, False])
def test_hooks_of_parameters_run(hook: Callable[[nn.Module], None], zero: bool) -> None:
    assert_as_eager(tied(), [torch.randn(3, 4)], steps=3, each=hook, zero=zero)


def test_hooks_of_several_gradients_and_how_often_hooks_run() -> None:
    module, x, calls = tied(), torch.randn(3, 4), []
    torch.autograd.graph.register_multi_grad_hook(list(module.parameters()), lambda grads: calls.append(len(grads)))
    module.a.bias.register_post_accumulate_grad_hook(lambda p: calls.append(p.grad.shape))
    step_of(module, [x], loss=square)(x)
    assert sorted(map(str, calls)) == ["3", "torch.Size([4])"]


def test_hooks_and_micro_batches() -> None:
    module, x = tied(), torch.randn(4, 4)
    step = step_of(module, [x], loss=square, micro_batches=2)
    step(x)
    scale(module)
    with pytest.raises(RunError, match=r"Made: parameter 'a.weight' has a hook, .*: place it without micro-batches"):
        step(x)


def test_inputs_that_ask_for_a_gradient_get_one() -> None:
    module = tied()
    leaf, other = torch.randn(3, 4, requires_grad=True), torch.randn(3, 4, requires_grad=True)
    step = step_of(module, [leaf], loss=square)
    for make in (lambda: leaf, lambda: other, lambda: other * 2):  # the last one has a graph of the caller's
        leaf.grad = other.grad = None
        module.zero_grad()
        step(make())
        mine = [p.grad for p in (leaf, other, *module.parameters())]
        leaf.grad = other.grad = None
        module.zero_grad()
        square(module(make())).backward()
        for found, tensor in zip(mine, (leaf, other, *module.parameters()), strict=True):
            assert (found is None) == (tensor.grad is None)
            assert found is None or torch.equal(found, tensor.grad)
    with pytest.raises(
        RunError,
        match=r"captured with a tensor .* that requires a gradient as value 0 of its arguments, not a tensor \(3, 4\)",
    ):
        step(leaf.detach())
    with pytest.raises(CaptureError, match=r"shape \(3, 4\) requires a gradient, .* call x.requires_grad_\(\)"):
        step_of(module, [leaf], loss=square, micro_batches=3)


def test_a_gradient_penalty() -> None:
    def penalty(self: Any, x: Tensor) -> Tensor:
        y = self.net(x)
        (slope,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        return y.mean() + (slope.norm(dim=1) - 1).square().mean()

    net, x = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1)), torch.randn(5, 3, requires_grad=True)
    assert_as_eager(Made(penalty, net=net), [x], lambda value: value)


class Head:
    """A loss that is no module, and has one."""

    def __init__(self) -> None:
        self.layer = nn.Linear(4, 1)

    def __call__(self, output: Tensor) -> Tensor:
        return self.layer(output).square().mean()

    def named(self, output: Tensor) -> Tensor:
        return self(output) * 2


def _losses() -> list[tuple[str, nn.Module, Any]]:
    head, layer = Head(), nn.Linear(4, 1)
    module = Made(lambda self, output: self.layer(output).square().mean(), layer=nn.Linear(4, 1))

    def of_layer(one: nn.Module, output: Tensor) -> Tensor:
        return one(output).square().mean()

    return [
        ("module", module, module),
        ("object", head.layer, head),
        ("method", head.layer, head.named),
        ("partial", layer, functools.partial(of_layer, layer)),
        ("closure", layer, lambda output: of_layer(layer, output)),
    ]


@pytest.mark.parametrize("loss", _losses(), ids=lambda case: case[0])
def test_parameters_of_a_loss_get_gradients_and_count(loss: tuple[str, nn.Module, Any]) -> None:
    _, owner, function = loss
    module, x = nn.Linear(4, 4), torch.randn(3, 4)
    step = step_of(module, [x], loss=function)
    assert step.capture.graph.param_bytes.sum() == 4 * (16 + 4 + 4 + 1)
    for _ in range(2):
        tensors = [*module.parameters(), *owner.parameters()]
        for tensor in tensors:
            tensor.grad = None
        made, mine = step(x), [tensor.grad for tensor in tensors]
        wanted = function(module(x))
        assert torch.equal(made, wanted.detach())
        assert all(torch.equal(a, b) for a, b in zip(mine, torch.autograd.grad(wanted, tensors), strict=True))
        with torch.no_grad():
            for tensor in tensors:
                tensor.add_(0.1)


def test_trainable_tensors_of_nobody_are_refused() -> None:
    weight = nn.Parameter(torch.ones(4))
    with pytest.raises(CaptureError, match=r"Linear: .* trainable tensor of shape \(4,\) that is no parameter"):
        step_of(nn.Linear(4, 4), [torch.ones(2, 4)], loss=lambda y: (y * weight).sum())
    listed = Made(lambda self, x: self.more[0](self.first(x)), first=nn.Linear(4, 4), more=[nn.Linear(4, 4)])
    with pytest.raises(CaptureError, match=r"layers in a list go into an nn\.ModuleList"):
        step_of(listed, [torch.ones(2, 4)], loss=square)


def test_what_a_loss_reads_without_a_gradient_is_welcome() -> None:
    teacher, x = nn.Linear(4, 4), torch.randn(2, 4)
    before = copy.deepcopy(teacher)
    assert_as_eager(nn.Linear(4, 4), [x], lambda y: (y - teacher(x).detach()).square().mean())
    assert teacher.weight.grad is None
    assert torch.equal(teacher.weight, before.weight)


@pytest.mark.parametrize("kind", ["new", "added", "hook"])
def test_gradients_go_to_the_device_of_their_parameter(kind: str) -> None:
    parameter, made = nn.Parameter(torch.empty(3, 4, device="meta")), torch.ones(4, 3).t()
    parameter.grad = torch.empty(3, 4, device="meta") if kind == "added" else None
    seen: list[str] = []
    if kind == "hook":
        parameter.register_hook(lambda gradient: seen.append(gradient.device.type))
    add_gradients([parameter], [made])
    assert parameter.grad.device == parameter.device
    assert parameter.grad.stride() == parameter.stride()
    assert seen == (["meta"] if kind == "hook" else [])
