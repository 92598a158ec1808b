"""A step is split into micro-batches along the batch, not along a sequence."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import placeto
from placeto.capture.trace import capture_inference, capture_training
from placeto.errors import CaptureError
from tests.captures import Made, assert_same_gradients


def loss(output: Tensor | tuple[Tensor, ...]) -> Tensor:
    return (output if isinstance(output, Tensor) else output[0]).square().mean()


@pytest.mark.parametrize(
    ("module", "where"),
    [
        (nn.LSTM(4, 6), "the module has"),
        (nn.Sequential(nn.Linear(4, 4), nn.GRU(4, 4, batch_first=False)), r"module '1' \(GRU\) has"),
        (
            nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0), 1, enable_nested_tensor=False),
            r"module 'layers.0.self_attn' \(MultiheadAttention\) has",
        ),
    ],
)
def test_a_sequence_in_dimension_0_is_not_split(module: nn.Module, where: str) -> None:
    x = torch.empty(8, 4, 4)  # a part of four has as many steps as there are samples
    message = f"{where} its batch in dimension 1, .* its sequence of 8: make it with batch_first=True"
    for count in (2, 8):
        with pytest.raises(CaptureError, match=message):
            capture_training(module, [x], loss, micro_batches=count)
    with pytest.raises(CaptureError, match=message):
        capture_inference(module, [x], micro_batches=2)
    capture_training(module, [x], loss)


def test_a_layer_whose_batch_is_brought_to_dimension_1_is_split() -> None:
    """The module takes the batch first, and gives it to its layer in dimension 1."""
    module: Any = Made(lambda self, x: self.layer(x.transpose(0, 1))[0].transpose(0, 1), layer=nn.GRU(4, 6))
    twin, x = copy.deepcopy(module), torch.randn(8, 5, 4)
    placed = placeto.place(module, [x], loss=loss, cluster="2xv100", micro_batches=4, placer="single")
    value, expected = placed.compile(devices=["cpu:0", "cpu:1"])(x), loss(twin(x))
    expected.backward()
    assert value.item() == pytest.approx(expected.item(), rel=1e-5)
    assert all(parameter.grad is not None for parameter in module.parameters())
    assert_same_gradients(module, twin, rtol=1e-5, atol=1e-6)
