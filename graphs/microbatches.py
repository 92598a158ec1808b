"""A training step in micro-batches: their passes can overlap on different devices (GPipe, Huang et al., 2019)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from graphs.training_step import TrainingStep


class MicroBatches(nn.Module):
    """Runs a module on equal parts of a batch, one after the other; their gradients add up."""

    def __init__(self, model: nn.Module, count: int) -> None:
        super().__init__()
        self.model = model
        self.count = count

    def forward(self, *inputs: Tensor) -> list[Any]:
        """Tensors (B, ...) -> the module's output for each part of B."""
        return [self.model(*parts) for parts in zip(*(x.chunk(self.count) for x in inputs), strict=True)]


def in_micro_batches(step: TrainingStep, count: int) -> TrainingStep:
    """Return the training step in `count` micro-batches; if `count` is 1, the step itself.

    Raises:
        ValueError: the batch, the first dimension of all inputs, can't be cut into `count` equal parts.
    """
    if count == 1:
        return step
    batch = len(step.inputs[0])
    if batch % count:
        raise ValueError(f"a batch of {batch} can't be cut into {count} equal micro-batches")
    whole: Callable[..., Tensor] = step.loss

    def loss(outputs: list[Any], *targets: Tensor) -> Tensor:
        parts = zip(outputs, *(target.chunk(count) for target in targets), strict=True)
        return torch.stack([whole(*part) for part in parts]).mean()

    return TrainingStep(MicroBatches(step.module, count), step.inputs, step.targets, loss)
