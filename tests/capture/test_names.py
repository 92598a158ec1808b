"""Graphs know what a module's tensors and inputs are called where they have no ops for them."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from placeto.capture.trace import capture_inference, capture_training
from placeto.problem.graph import ComputationGraph
from tests.captures import Made


class Model(nn.Module):
    """A module under two names, a tied weight, a buffer under two names, and inputs that are read here and there."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last, self.tied = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)
        self.again, self.tied.weight = self.first, self.last.weight
        self.register_buffer("scale", torch.rand(4))
        self.register_buffer("also", self.scale, persistent=False)

    def forward(self, x: Tensor, masks: dict[str, list[Tensor]]) -> Tensor:
        x = self.again(x) * self.scale.view(1, 4)
        return self.tied(self.last(x)) * (masks["some"][0] > 0)


INPUTS = [torch.randn(2, 4), {"some": [torch.randn(2, 1)]}]


def known(graph: ComputationGraph) -> dict[str, tuple[tuple[str, ...], tuple[str, ...]]]:
    columns = zip(graph.op_names, graph.module_tensors, graph.module_inputs, strict=True)
    return {name: (tensors, inputs) for name, tensors, inputs in columns if tensors or inputs}


def test_second_names_buffers_and_inputs() -> None:
    forward = {
        "first.weight": (("again.weight",), ()),
        "first.bias": (("again.bias",), ()),
        "first/addmm": ((), ("x",)),
        "mul": (("scale", "also"), ()),
        "last.weight": (("tied.weight",), ()),
        "gt": ((), ("masks['some'][0]",)),
    }
    assert known(capture_inference(Model(), INPUTS)) == forward
    training = known(capture_training(Model(), INPUTS, lambda y: y.sum()))
    assert {name: training[name] for name in forward} == forward
    assert {name for name in training if training[name][1]} == {"first/addmm", "gt"}, "not what gradients read"


def test_inputs_of_which_the_shape_alone_is_read() -> None:
    cases: list[tuple[Callable[[Any, Tensor], Tensor], str]] = [
        (lambda m, x: m.inner(x[:1].new_zeros(2, 4)), "inputs[0].shape"),
        (lambda m, x: m.inner(torch.ones_like(x) + x[:1]), "inputs[0]"),
    ]
    for compute, name in cases:
        graph = capture_inference(Made(compute, inner=nn.Linear(4, 4)), [torch.randn(2, 4)])
        assert set(filter(None, graph.module_inputs)) == {(name,)}


def test_tensors_that_no_op_reads_are_known() -> None:
    model = Model()
    model.idle, model.table = nn.Linear(2, 2), nn.Parameter(torch.ones(2))
    model.idle.register_buffer("buffer", torch.ones(2), persistent=False)
    graph = capture_inference(model, INPUTS)
    names = {name for names in graph.module_tensors for name in names} | set(graph.op_names)
    assert {"idle.weight", "idle.bias", "idle.buffer", "table"} <= names


def test_a_module_with_two_names_has_its_parameters_afterwards() -> None:
    model = Model()
    before = dict(model.named_parameters(remove_duplicate=False)) | dict(model.named_buffers(remove_duplicate=False))
    capture_training(model, INPUTS, lambda y: y.sum())
    after = dict(model.named_parameters(remove_duplicate=False)) | dict(model.named_buffers(remove_duplicate=False))
    assert list(before) == list(after)
    assert all(before[name] is after[name] for name in before)


def test_buffers_are_named_in_the_order_in_which_an_op_reads_them() -> None:
    norms = nn.Sequential(*(nn.BatchNorm1d(4) for _ in range(8)))
    graph = capture_inference(norms, [torch.zeros(2, 4)])
    read = [[name for name in names if "running" in name] for names in graph.module_tensors]
    assert [names for names in read if names] == [[f"{n}.running_mean", f"{n}.running_var"] for n in range(8)]
