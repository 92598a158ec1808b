"""Steps with real values."""

import pytest
import torch
from torch import nn

from placeto.errors import RunError
from placeto.runtime.real_steps import filled, real_inference, real_training


def test_what_is_left_uninitialised_is_filled() -> None:
    with filled():
        indices, numbers = torch.empty(1000, dtype=torch.int64), torch.empty(1000)
        layer = nn.Linear(3, 3)
        nothing = torch.empty(3, device="meta")
    assert indices.abs().sum() == 0
    assert numbers.isfinite().all()
    assert 0.8 < numbers.std() < 1.2
    assert layer.weight.abs().max() < 0.6  # as ever
    assert nothing.device.type == "meta"


def test_leaves_are_parameters_buffers_inputs_and_targets() -> None:
    module, x, y = nn.BatchNorm1d(3), torch.ones(4, 3), torch.zeros(4, 3)
    step = real_training(module, [x], nn.functional.mse_loss, targets=[y])
    shapes = [tuple(leaf.shape) for leaf in step.leaves]
    assert shapes == [(3,), (3,), (3,), (3,), (), (4, 3), (4, 3)]
    assert not any(leaf.requires_grad for leaf in step.leaves)


def test_tensors_elsewhere_are_refused() -> None:
    module = nn.Linear(3, 3, device="meta")
    with pytest.raises(RunError, match=r"Linear: a tensor of shape \(3, 3\) is on 'meta': .* on the cpu"):
        real_inference(module, [torch.empty(1, 3)])
