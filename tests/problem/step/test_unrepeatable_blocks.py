"""Blocks that would compute something else if they were called again are not recomputed."""

import copy
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from placeto.problem.step.recomputation import recomputable
from tests.capture.steps import Step
from tests.captures import Made, square
from tests.parts import through
from tests.problem.step.test_recomputation import captured


def dense(count: int) -> nn.Module:
    """Dense blocks, as of a DenseNet: each layer is given a list, to which its caller appends what it returns."""

    def layer(made: Made, features: list[torch.Tensor]) -> torch.Tensor:
        return made.inner(made.norm(torch.cat(features, 1))).tanh()

    def block(made: Made, x: torch.Tensor) -> torch.Tensor:
        features = [x]
        for each in made.layers:
            features.append(each(features))
        return made.last(torch.cat(features, 1))

    def layers() -> list[nn.Module]:
        return [Made(layer, norm=nn.LayerNorm(size), inner=nn.Linear(size, 8)) for size in range(8, 40, 8)]

    return nn.Sequential(*(Made(block, layers=nn.ModuleList(layers()), last=nn.Linear(40, 8)) for _ in range(count)))


def of_four(block: Callable[..., Any], forward: Callable[..., torch.Tensor], **buffers: torch.Tensor) -> nn.Module:
    """A model with four blocks, which have these buffers."""
    blocks = nn.ModuleList(Made(block, inner=nn.Linear(8, 8)) for _ in range(4))
    for each in blocks:
        for name, value in buffers.items():
            each.register_buffer(name, value.clone())
    return Made(forward, first=nn.Linear(8, 8), blocks=blocks)


def in_turn(made: Made, x: torch.Tensor) -> torch.Tensor:
    return through(made.blocks, made.first(x))


def in_place_before(made: Made, x: torch.Tensor) -> torch.Tensor:
    return nn.functional.gelu(made.inner(x.relu_()))


def scaled(made: Made, x: torch.Tensor) -> torch.Tensor:
    made.scale.mul_(0.9).add_(0.1 * x.detach().abs().mean())
    return made.inner(x / made.scale).tanh().sin()


def averaged(made: Made, x: torch.Tensor) -> torch.Tensor:
    made.mean.mul_(0.9).add_(0.1 * x.detach().mean())
    return made.inner(x).tanh().sin()


def counted(made: Made, x: torch.Tensor) -> torch.Tensor:
    made.calls += 1
    return made.inner(x).tanh().sin()


def appending(made: Made, x: torch.Tensor, seen: list[torch.Tensor]) -> torch.Tensor:
    seen.append(made.inner(seen[-1]).tanh())
    return x + sum(seen)


def changed_after(made: Made, x: torch.Tensor) -> torch.Tensor:
    x = made.first(x)
    for block in made.blocks:
        y = block(x)
        x.mul_(2.0)
        x = x + y
    return x


def in_turn_with_objects(made: Made, x: torch.Tensor) -> torch.Tensor:
    state = SimpleNamespace(x=made.first(x))
    for block in made.blocks:
        state.x = block(state)
    return state.x


def in_a_global(made: Made, x: torch.Tensor) -> torch.Tensor:
    x = made.first(x)
    for block in made.blocks:
        NOTES["x"] = x
        x = block()
    return x


NOTES = dict[str, torch.Tensor]()
CHANGING = {
    "a list to which the caller appends": (dense(1), ()),
    "such a list in each of three blocks": (dense(3), ("0", "1", "2")),
    "a list to which the block appends": (
        of_four(appending, lambda made, x: through([partial(b, seen=[x]) for b in made.blocks], made.first(x))), ()
    ),
    "a tensor that the block changes": (
        of_four(in_place_before, in_turn), ()
    ),
    "a tensor that the caller changes": (of_four(lambda made, x: made.inner(x.sigmoid()).tanh(), changed_after), ()),
    "a buffer": (of_four(scaled, in_turn, scale=torch.ones(())), ()),
    "an average": (of_four(averaged, in_turn, mean=torch.ones(())), ()),
    "a counter": (
        of_four(counted, in_turn, calls=torch.zeros((), dtype=torch.long)),
        tuple(f"blocks.{number}" for number in range(4)),
    ),
    "an object": (of_four(lambda made, state: made.inner(state.x).tanh() + state.x, in_turn_with_objects), ()),
    "a global variable": (of_four(lambda made: made.inner(NOTES["x"]).tanh() + NOTES["x"], in_a_global), ()),
}  # fmt: skip
"""Makes a model, and the blocks that are left."""


@pytest.mark.parametrize("name", CHANGING)
def test_blocks_whose_inputs_are_changed_are_left_out(name: str) -> None:
    """Computed again, they would compute something else, or autograd would refuse it."""
    model, blocks = CHANGING[name]
    step = Step(model, [torch.randn(16, 8)], square)
    graph = captured(step, 1)
    assert [path for path in recomputable(graph) if not path.endswith(("inner", "norm"))] == list(blocks)
    assert step.loss is not None
    eager = copy.deepcopy(model)
    step.loss(eager(*step.inputs)).backward()
    for path in recomputable(graph):
        block = model.get_submodule(path)
        block.forward = partial(checkpoint, block.forward, use_reentrant=False)
    step.loss(model(*step.inputs)).backward()
    for parameter, expected in zip(model.parameters(), eager.parameters(), strict=True):
        assert torch.equal(parameter.grad, expected.grad)
    for buffer, expected in zip(model.buffers(), eager.buffers(), strict=True):
        assert torch.equal(buffer, expected) or not buffer.is_floating_point()
