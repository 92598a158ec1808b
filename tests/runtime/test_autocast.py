"""Placed steps under autocast, beside the module itself."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.captures import Made, assert_same_gradients, square
from tests.runtime.true import step_of


@pytest.mark.parametrize("count", [1, 2])
def test_a_weight_that_autocast_casts_has_one_copy(count: int) -> None:
    """As in eager PyTorch, several ops read this copy, and its gradient is added up in 16 bits.

    Micro-batches share the copy.
    """

    def loop(self: Any, x: Tensor) -> Tensor:
        for _ in range(4):
            x = self.layer(x).tanh()
        return x.float()

    module, x = Made(loop, layer=nn.Linear(32, 32)), torch.randn(4, 32)
    twin = copy.deepcopy(module)
    step = step_of(module, [x], loss=square, precision="bf16", micro_batches=count)
    weight = next(iter(step.step.capture.traced.graph.nodes))
    assert len(weight.users) == 1
    step(x)
    for part in x.chunk(count):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            value = twin(part).square().mean() / count
        value.backward()
    assert module.layer.weight.grad is not None
    assert_same_gradients(module, twin)
