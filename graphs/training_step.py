"""A training step: what a family draws, and what is captured."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from placeto.problem.graph import ComputationGraph

if TYPE_CHECKING:
    from torch import Tensor, nn


class TrainingStep(NamedTuple):
    """A model with the inputs, targets and loss of one step of its training."""

    module: nn.Module
    inputs: tuple[Tensor, ...]
    targets: tuple[Tensor, ...]
    loss: Callable[..., Tensor]  # of the module's output and the targets

    def capture(self, name: str | None = None) -> ComputationGraph:
        """Capture the graph of the step; see `placeto.capture.trace.capture_training`."""
        from placeto.capture.trace import capture_training

        return capture_training(self.module, self.inputs, self.loss, targets=self.targets, name=name)
