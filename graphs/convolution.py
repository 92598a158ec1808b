"""What the convolutional networks for ImageNet have in common: a convolution with batch normalisation, and the step.

Shapes: B images, H x W pixels.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from graphs.training_step import TrainingStep

CLASSES = 1000


class ConvNorm(nn.Module):
    """Convolution, batch normalisation and, with `activation`, ReLU; padding is "same" unless it is given."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        kernel: int | tuple[int, int],
        stride: int = 1,
        padding: int | tuple[int, int] | None = None,
        activation: bool = True,
    ) -> None:
        super().__init__()
        height, width = (kernel, kernel) if isinstance(kernel, int) else kernel
        if padding is None:
            padding = (height // 2, width // 2)
        self.activation = activation
        self.conv = nn.Conv2d(inputs, outputs, (height, width), stride, padding, bias=False)
        self.norm = nn.BatchNorm2d(outputs)

    def forward(self, x: Tensor) -> Tensor:
        """(B, inputs, H, W) -> (B, outputs, H / stride, W / stride)."""
        x = self.norm(self.conv(x))
        return F.relu(x) if self.activation else x


def scaled(channels: int, width: float) -> int:
    """Return the channels of a network made wider or narrower: a multiple of 8 unless the width is 1."""
    return channels if width == 1 else max(8, int(channels * width / 8 + 0.5) * 8)


def loss(logits: Tensor | Sequence[Tensor], labels: Tensor) -> Tensor:
    """Cross-entropy of the first logits, plus 0.4 times that of all others, which come from auxiliary classifiers."""
    if isinstance(logits, Tensor):
        return F.cross_entropy(logits, labels)
    main, *auxiliary = [F.cross_entropy(x, labels) for x in logits]
    return main + 0.4 * torch.stack(auxiliary).sum()


def classification_step(module: nn.Module, batch: int, resolution: int) -> TrainingStep:
    """Return a training step on square images, on the default device; the values of its inputs are arbitrary."""
    images = torch.empty(batch, 3, resolution, resolution)
    labels = torch.zeros(batch, dtype=torch.long)
    return TrainingStep(module, (images,), (labels,), loss)
