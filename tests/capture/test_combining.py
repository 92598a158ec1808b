"""What the micro-batches of a step give each other."""

from typing import Any

import torch
from torch import Tensor, nn

from placeto.capture.trace import trace_inference, trace_training
from tests.captures import Made, meta, square


def two(self: Any, x: Tensor) -> Tensor:
    total: Tensor = (self.one + self.other) * x + self.last(x)
    return total


def test_sums_come_in_the_order_of_the_gradients_and_of_one_gradient_the_last_parameter_first() -> None:
    module = Made(two, one=nn.Parameter(meta(4)), other=nn.Parameter(meta(4)), last=nn.Linear(4, 4, device="meta"))
    step = trace_training(module, [meta(8, 4)], square, micro_batches=2).step
    assert [each.parameter for each in step.combined] == ["", "last.bias", "last.weight", "other", "one"]
    *_, other, one = step.combined
    assert (other.source, other.after) == (one.source, one.after)
    assert step.micro_batch.op_types[one.source[0]] == "aten.sum"
    assert one.record["bytes_accessed"] == 3 * 16
    assert one.record["outputs"] == [16]
    assert step.trained == ("one", "other", "last.weight", "last.bias")


def statistics(self: Any, x: Tensor) -> Tensor:
    y: Tensor = self.inner(x)
    self.mean.lerp_(y.detach().mean(0), 0.1)
    return y


def test_statistics_are_carried_to_the_next_micro_batch() -> None:
    module = Made(statistics, inner=nn.Linear(4, 4, device="meta"))
    module.register_buffer("mean", meta(4))
    step = trace_training(module, [meta(8, 4)], square, micro_batches=2).step
    (carried,) = step.carried
    assert [step.micro_batch.op_types[op] for op in (carried.reader, carried.source[0])] == ["aten.lerp"] * 2
    assert carried.place == 0


def test_outputs_are_joined_by_an_op_of_all_micro_batches() -> None:
    step = trace_inference(nn.Linear(4, 3, device="meta"), [meta(8, 4)], micro_batches=4).step
    (join,) = step.combined
    assert join.source == (step.micro_batch.num_ops - 1, 0)
    assert join.record["signature"] == "aten.cat.default([4*f32[2,3]])"
    assert join.record["bytes_accessed"] == 2 * 8 * 3 * torch.float32.itemsize
