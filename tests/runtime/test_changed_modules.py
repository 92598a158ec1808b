"""A module that is changed after it was captured: another step is refused, the same one runs."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from placeto.errors import RunError
from tests.captures import Made, square
from tests.runtime.true import step_of


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)
        self.b.weight = self.a.weight
        self.act: nn.Module = nn.ReLU()
        self.drop, self.norm = nn.Dropout(0.0), nn.BatchNorm1d(4)
        self.scale, self.factors, self.named = torch.ones(4), [1.0, 2.0], {"k": 2.0}

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.drop(self.b(self.act(self.a(x))))) * self.scale * self.factors[0] * self.named["k"]


def replaced(*path: Any) -> Callable[[Any], None]:
    """What sets an attribute or item of a module."""
    *way, key, value = path

    def change(module: Any) -> None:
        for part in way:
            module = getattr(module, part)
        if isinstance(module, list | dict):
            module[key] = value
        else:
            setattr(module, key, value)

    return change


REFUSED = {
    "mode": (lambda module: module.eval(), r"\.training"),
    "dropout": (replaced("drop", "p", 0.5), r"\.p of module 'drop' \(Dropout\)"),
    "eps": (replaced("norm", "eps", 0.1), r"\.eps of module 'norm' \(BatchNorm1d\)"),
    "frozen": (
        lambda module: module.a.weight.requires_grad_(False),
        "that requires a gradient as 'a.weight', not a tensor",
    ),
    "untied": (lambda module: replaced("b", "weight", nn.Parameter(torch.ones(4, 4)))(module), "'b.weight'"),
    "tied": (lambda module: replaced("b", "bias", module.a.bias)(module), "'b.bias'"),
    "larger": (
        lambda module: replaced("b", "bias", nn.Parameter(torch.ones(1)))(module),
        r"as 'b.bias', not a tensor \(1,\)",
    ),
    "activation": (replaced("act", nn.GELU()), r"\.act of the module"),
    "tensor": (replaced("scale", torch.zeros(4)), r"\.scale of the module"),
    "list": (replaced("factors", 0, 3.0), r"\.factors of the module"),
    "dict": (replaced("named", "k", 3.0), r"\.named of the module"),
    "forward": (replaced("forward", lambda x: x), r"\.forward of the module"),
    "hook": (lambda module: module.a.register_forward_hook(lambda m, i, o: o * 2), r"module 'a' \(Linear\)"),
    "dtype": (lambda module: module.half(), "not a tensor .* of float16"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_another_step_is_refused(name: str) -> None:
    change, where = REFUSED[name]
    module, x = Block(), torch.randn(3, 4)
    step = step_of(module, [x], loss=square)
    step(x)
    change(module)
    with pytest.raises(RunError, match=f"Block.*{where}.*place it again"):
        step(x)


def test_a_parameter_that_was_frozen_and_is_trained_now_is_refused() -> None:
    module, x = Block(), torch.randn(3, 4)
    module.a.bias.requires_grad_(False)
    step = step_of(module, [x], loss=square)
    module.a.bias.requires_grad_(True)
    with pytest.raises(RunError, match=r"as 'a\.bias', not .* that requires a gradient: .* place it again"):
        step(x)


ALLOWED: dict[str, Callable[[Any], Any]] = {
    "number": replaced("epoch", 3),
    "parameter": lambda module: replaced("a", "bias", nn.Parameter(torch.ones(4)))(module),
    "layer": lambda module: replaced("norm", nn.BatchNorm1d(4))(module),
    "buffer": lambda module: replaced("norm", "running_mean", torch.ones(4))(module),
    "in place": lambda module: module.scale.mul_(2),
    "state": lambda module: module.load_state_dict({k: v * 2 for k, v in module.state_dict().items()}, assign=True),
    "hook": lambda module: module.a.register_forward_hook(lambda m, i, o: None),
}


@pytest.mark.parametrize("name", ALLOWED)
def test_the_same_step_runs(name: str) -> None:
    module, x = Block(), torch.randn(3, 4)
    step = step_of(module, [x], loss=square)
    step(x)
    if name == "state":  # is tied again
        ALLOWED[name](module)
        module.b.weight = module.a.weight
    else:
        ALLOWED[name](module)
    module.zero_grad()
    made, mine = step(x), [p.grad for p in module.parameters()]
    wanted = square(module(x))
    assert torch.equal(made, wanted.detach())
    assert all(torch.equal(a, b) for a, b in zip(mine, torch.autograd.grad(wanted, module.parameters()), strict=True))


def test_changed_back_it_runs_again() -> None:
    module, x = Block(), torch.randn(3, 4)
    step = step_of(module, [x], loss=square)
    module.eval()
    with pytest.raises(RunError, match="change it back"):
        step(x)
    module.train()
    step(x)


def test_inference_is_that_of_evaluation_mode() -> None:
    module, x = Block(), torch.randn(3, 4)
    step = step_of(module, [x])
    for train in (True, False):
        module.train(train)
        made = step(x)
        assert torch.equal(made, module.eval()(x).detach())
    module.norm.eps = 1.0
    with pytest.raises(RunError, match=r"norm"):
        step(x)


def test_a_changed_loss_is_refused() -> None:
    loss = Made(lambda self, y: self.beta * y.square().mean(), beta=1.0)
    module, x = nn.Linear(4, 4), torch.randn(3, 4)
    for given in (loss, lambda y: loss(y) + 1.0):
        step = step_of(module, [x], loss=given)
        assert torch.equal(step(x), given(module(x)).detach())
        loss.beta = 2.0
        with pytest.raises(RunError, match=r"changed since it was captured, \.beta of module 'loss'"):
            step(x)
        loss.beta = 1.0
        assert torch.equal(step(x), given(module(x)).detach())


def test_a_call_in_another_autocast_is_refused() -> None:
    x = torch.ones(3, 4)
    step = step_of(nn.Linear(4, 4), [x], loss=square)
    within = r"^Linear was captured without torch.autocast and is called under torch.autocast\('cpu', torch.bfloat16\)"
    with torch.autocast("cpu", torch.bfloat16):
        with pytest.raises(RunError, match=within):
            step(x)
        cast = step_of(nn.Linear(4, 4), [x])
        assert cast(x).dtype is torch.bfloat16
    with pytest.raises(RunError, match=r"^Linear was captured under .* and is called without torch.autocast, where"):
        cast(x)
    bf16 = step_of(nn.Linear(4, 4), [x], precision="bf16")
    torch.set_autocast_enabled("cuda", True)  # as torch.autocast("cuda") does with a GPU
    torch.set_autocast_dtype("cuda", torch.bfloat16)
    try:
        assert bf16(x).dtype is torch.bfloat16
        with pytest.raises(RunError, match=r"is called under torch.autocast\('cuda', torch.bfloat16\)"):
            step(x)
    finally:
        torch.set_autocast_dtype("cuda", torch.float16)
        torch.set_autocast_enabled("cuda", False)
    step(x)
