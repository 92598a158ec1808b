"""Modules that are refused before they are traced, with what to do instead."""

import warnings

import pytest
import torch
from torch import nn

from placeto.capture.errors import CaptureError
from placeto.capture.trace import capture_inference, capture_training


@pytest.mark.parametrize("kind", [nn.Embedding, nn.EmbeddingBag])
def test_sparse_gradients_are_refused_by_path(kind: type[nn.Module]) -> None:
    module = nn.Sequential(nn.Sequential(kind(50, 8, sparse=True)), nn.Linear(8, 2))
    ids = torch.ones(4, 3, dtype=torch.int64)
    with pytest.raises(
        CaptureError, match=rf"^Sequential: module '0\.0' \({kind.__name__}\) .*: make it with sparse=F"
    ):
        capture_training(module, [ids], lambda y: y.sum())
    assert capture_inference(module, [ids]).num_ops
    module[0].requires_grad_(False)
    assert capture_training(module, [ids], lambda y: y.sum()).num_ops


@pytest.mark.parametrize("layer", [nn.Linear(4, 4), nn.LSTM(4, 4)])
def test_quantised_modules_are_refused(layer: nn.Module) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = torch.ao.quantization.quantize_dynamic(nn.Sequential(layer), {type(layer)}, dtype=torch.qint8)
    with pytest.raises(
        CaptureError, match=r"^Sequential: module '0.*' \(\w+\) is quantised, .*: give the module as it"
    ):
        capture_inference(module, [torch.ones(3, 2, 4)])
