"""Small models for `torch_plans`: factories, as `placeto place` and `run.py` take them."""

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


class Residual(nn.Module):
    """Two convolutions with batch norms. What its last op gives is saved for the backward pass."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.one, self.other = (nn.Conv2d(channels, channels, 3, padding=1, bias=False) for _ in range(2))
        self.norm, self.last = nn.BatchNorm2d(channels), nn.BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) to the same."""
        y = self.norm(self.one(x)).relu_()
        return torch.relu_(self.last(self.other(y)) + x)


def convolutions(blocks: int = 4, batch: int = 24) -> tuple[nn.Module, list[Tensor], nn.Module, list[Tensor]]:
    """Classifies images of 16 x 16 pixels."""
    layers = [nn.Conv2d(3, 32, 3), nn.ReLU(inplace=True), *(Residual(32) for _ in range(blocks))]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10))
    return model, [torch.randn(batch, 3, 16, 16)], nn.CrossEntropyLoss(), [torch.randint(0, 10, (batch,))]
