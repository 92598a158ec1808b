"""Which architectures of transformers run; see `experiments.architectures`."""

import pytest
import torch
from torch import nn

from experiments.architectures import difference, eager, model, outcome, verdict
from tests.parts import Parts

pytest.importorskip("transformers")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("parts", [1, 2])
def test_a_tiny_model_has_the_gradients_of_eager_pytorch(parts: int) -> None:
    module, inputs = model("AutoModelForCausalLM", "gpt2")
    found = outcome(module, inputs, parts)
    assert (found.refused, found.random) == ("", False)
    assert found.ops > 100
    assert found.difference == 0.0
    assert verdict(found) == "0e+00"


def test_differences_are_relative_and_missing_gradients_count() -> None:
    one, other = torch.tensor([1.0, 4.0]), torch.tensor([1.0, 5.0])
    assert difference([one, None], [other, None]) == pytest.approx(0.2)
    assert difference([one, None], [other, one]) == float("inf")


def test_micro_batches_are_averaged() -> None:
    class Square(Parts):
        def forward(self, x: torch.Tensor) -> object:
            return type("Output", (), {"loss": (self.weight * x).sum()})

    (gradient,) = eager(Square(weight=nn.Parameter(torch.ones(1))), {"x": torch.tensor([1.0, 2.0, 3.0, 4.0])}, 2)
    assert gradient == torch.tensor([5.0])  # (1 + 2 + 3 + 4) / 2
