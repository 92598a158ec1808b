"""Modules whose sizes depend on values: refused with what to do, or captured by computing one step."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from placeto.capture import capture_training, trace_training
from placeto.errors import CaptureError
from tests.capture.zoo import Experts, experts
from tests.captures import Made, meta, mlp


def chosen(self: Any, x: Tensor) -> Tensor:
    """The second layer works on the positive rows only."""
    self.count += 1
    (rows,) = torch.nonzero(x.sum(1) > 0, as_tuple=True)
    return self.two(torch.relu(self.one(x)[rows]))


def test_sizes_are_those_of_the_example() -> None:
    module = Made(chosen, one=nn.Linear(4, 4, bias=False), two=nn.Linear(4, 4, bias=False))
    module.register_buffer("count", torch.zeros(()))
    x = torch.tensor([[1.0] * 4, [-1.0] * 4, [2.0] * 4])
    with pytest.raises(CaptureError, match=r"test_run.py:\d+: DynamicOutputShape.*; .* by `placeto capture --run`"):
        capture_training(module, [x], lambda y: y.sum())
    before = torch.get_rng_state()
    graph = capture_training(module, [x], lambda y: y.sum(), run=True)
    work = dict(zip(graph.op_names, graph.flops, strict=True))
    assert work["one/mm"] == 2 * 3 * 4 * 4
    assert work["two/mm"] == 2 * 2 * 4 * 4
    assert module.count == 0, "the module is left as it was"
    assert module.one.weight.grad is None
    assert torch.equal(torch.get_rng_state(), before)


def test_a_value_may_be_asked_for() -> None:
    scaled = Made(lambda self, x: self.layer(x * 2 if x.sum().item() > 1e9 else x), layer=nn.Linear(4, 4))
    with pytest.raises(CaptureError, match=r"DataDependentOutput.*, or have the step computed once"):
        capture_training(scaled, [torch.ones(2, 4)], lambda y: y.sum())
    graph = capture_training(scaled, [torch.ones(2, 4)], lambda y: y.sum(), run=True)
    assert "aten.mul" not in graph.op_types


def test_the_same_graph_where_no_size_depends_on_values() -> None:
    inputs = [torch.randn(2, 8)]
    plain, run = (capture_training(mlp(), inputs, lambda y: y.sum(), run=run) for run in (False, True))
    assert plain.hash == run.hash


def test_random_choices_are_the_same_in_both_passes() -> None:
    """A mutation makes a second pass over the trace: sizes that were drawn in the first one hold in the second."""

    class Drawn(Experts):
        def forward(self, x: Tensor) -> Tensor:
            x = x.clone()
            x[0] = 0
            return super().forward(x + torch.randn_like(x))

    capture = trace_training(experts(Drawn).module, [torch.randn(12, 8)], lambda y: y.sum(), run=True)
    assert not any("_." in str(node.target) for node in capture.traced.graph.nodes), "no mutation is left"


@pytest.mark.parametrize(
    ("module", "x", "what"), [(mlp().to("meta"), torch.ones(2, 8), "parameter"), (mlp(), meta(2, 8), "input")]
)
def test_values_are_needed(module: nn.Module, x: Tensor, what: str) -> None:
    with pytest.raises(CaptureError, match=f"net: to be run, it needs values, and a {what} is on the device meta"):
        capture_training(module, [x], lambda y: y.sum(), name="net", run=True)
