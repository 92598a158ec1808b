"""What a step writes to buffers and parameters, and whether the next micro-batch would depend on it."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from placeto.capture.trace import capture_training
from placeto.errors import CaptureError
from tests.captures import square

X = torch.randn(12, 6)


class Statistics(nn.Module):
    """Has a buffer, which forward changes as a function says, and a counter."""

    def __init__(self, change: Any) -> None:
        super().__init__()
        self.inner, self.change = nn.Linear(6, 3), change
        self.register_buffer("mean", torch.zeros(3))
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.inner(x)
        return y + self.change(self, y.detach())


def ema(self: Any, y: Tensor) -> float:
    self.mean.mul_(0.9).add_(0.1 * y.mean(0))
    self.count.add_(1)
    return 0.0


def kept(self: Any, y: Tensor) -> Tensor:
    self.mean.copy_(y.mean(0))
    return self.mean * 2.0


def centred(self: Any, y: Tensor) -> Tensor:
    return -self.mean + ema(self, y)


def counted(self: Any, y: Tensor) -> Tensor:
    ema(self, y)
    return y / self.count


def renormed(self: Any, y: Tensor) -> float:
    with torch.no_grad():
        self.inner.bias.clamp_(max=1.0)
    return 0.0


@pytest.mark.parametrize("change", [ema, kept])
def test_statistics_that_the_next_micro_batch_does_not_need_are_updated(change: Any) -> None:
    graph = capture_training(Statistics(change), [X], square, micro_batches=3)
    reads = {name: [graph.op_names[op] for op in ops] for name, ops in zip(graph.op_names, graph.reads, strict=True)}
    assert reads["@1/mul"] == (["add"] if change is ema else ["@1/copy"])


@pytest.mark.parametrize(("change", "what"), [(centred, "mean"), (counted, "count"), (renormed, "inner.bias")])
def test_state_that_the_next_micro_batch_needs_is_refused(change: Any, what: str) -> None:
    with pytest.raises(
        CaptureError, match=f"Statistics: forward changes '{what}', on which the next micro-batch would"
    ):
        capture_training(Statistics(change), [X], square, micro_batches=3)
    capture_training(Statistics(change), [X], square)


def test_values_that_python_reads_of_a_counter_are_refused() -> None:
    module = nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3, momentum=None))
    with pytest.raises(CaptureError, match=r"forward changes '1.num_batches_tracked', on which the next micro-batch"):
        capture_training(module, [X], square, micro_batches=3, run=True)
    capture_training(module, [X], square, run=True)
