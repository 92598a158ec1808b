"""Which architectures of transformers run; see `experiments.architectures`."""

import pytest
import torch
from torch import nn

from experiments.architectures import difference, eager
from tests.captures import Made

pytest.importorskip("transformers")


def test_differences_are_relative_and_missing_gradients_count() -> None:
    one, other = torch.tensor([1.0, 4.0]), torch.tensor([1.0, 5.0])
    assert difference([one, None], [other, None]) == pytest.approx(0.2)
    assert difference([one, None], [other, one]) == float("inf")


def test_micro_batches_are_averaged() -> None:
    square = Made(
        lambda self, x: type("Output", (), {"loss": (self.weight * x).sum()}), weight=nn.Parameter(torch.ones(1))
    )
    (gradient,) = eager(square, {"x": torch.tensor([1.0, 2.0, 3.0, 4.0])}, 2)
    assert gradient == torch.tensor([5.0])  # (1 + 2 + 3 + 4) / 2
