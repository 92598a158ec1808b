"""A small transformer with a head, for `torch_plans`: `FILE:net` of `placeto place` and of `run.py`."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def net(layers: int = 6, width: int = 32, batch: int = 24) -> tuple[nn.Module, list[Tensor], nn.Module, list[Tensor]]:
    """Classifies each of 16 vectors of `width` numbers, of which there are `batch` rows."""
    layer = nn.TransformerEncoderLayer(width, 4, 4 * width, batch_first=True, dropout=0.0)
    model = nn.Sequential(nn.TransformerEncoder(layer, layers), nn.Linear(width, 4), Classes())
    return model, [torch.randn(batch, 16, width)], nn.CrossEntropyLoss(), [torch.randint(0, 4, (batch, 16))]


class Classes(nn.Module):
    """Takes the last dimension to where cross entropy has the classes: its output is a view."""

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, C) to (B, C, T)."""
        return x.transpose(1, 2)
