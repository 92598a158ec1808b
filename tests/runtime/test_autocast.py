"""Placed steps under autocast, beside the module itself."""

import copy

import pytest
import torch
from torch import Tensor, nn

from tests.runtime.true import square, step_of


@pytest.mark.parametrize("count", [1, 2])
def test_a_weight_that_autocast_casts_has_one_copy(count: int) -> None:
    """As in eager PyTorch, several ops read this copy, and its gradient is added up in 16 bits.

    Micro-batches share the copy.
    """

    class Loop(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(32, 32)

        def forward(self, x: Tensor) -> Tensor:
            for _ in range(4):
                x = self.layer(x).tanh()
            return x.float()

    module, x = Loop(), torch.randn(4, 32)
    twin = copy.deepcopy(module)
    step = step_of(module, [x], loss=square, precision="bf16", micro_batches=count)
    weight = next(iter(step.step.capture.traced.graph.nodes))
    assert len(weight.users) == 1
    step(x)
    for part in x.chunk(count):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            value = twin(part).square().mean() / count
        value.backward()
    for ours, theirs in zip(module.parameters(), twin.parameters(), strict=True):
        assert ours.grad is not None
        assert theirs.grad is not None
        assert torch.equal(ours.grad, theirs.grad)
