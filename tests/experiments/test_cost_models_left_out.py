"""Ops of a board or of a model are left out of the table."""

import pytest

from experiments.cost_models_left_out import is_of_model
from experiments.fit_efficiency import Op


@pytest.mark.parametrize(
    ("measured_in", "model", "same"),
    [
        ("resnet50", "resnet50_b128", True),
        ("resnext50", "resnext50_32x4d_b128", True),
        ("squeezenet1_0", "squeezenet1_0_b256", True),
        ("bert_large-train-512-2", "bert_large_T512_b8", True),
        ("gpt3_27-inf-2048-8", "gpt3_27_T2048_b1", True),
        ("resnet50", "resnet18_b256", False),
        ("bert_large-train-512-2", "squad_large_b8", False),
        ("train", "resnet50_b128", False),
    ],
)
def test_ops_of_a_model_are_known_by_its_name(measured_in: str, model: str, same: bool) -> None:
    assert is_of_model(Op("PipeDream", "v100", "*", "softmax", 0.0, 1.0, 0.0, 1.0, measured_in), model) == same
