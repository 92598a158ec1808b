"""Which modules a loss brings along."""

import functools

import pytest
import torch
from torch import Tensor, nn

from placeto.capture.inputs.loss_modules import modules_of
from placeto.capture.trace import capture_inference, capture_training
from placeto.errors import CaptureError
from tests.captures import Made

GLOBAL = nn.Linear(2, 2)


def with_global(output: Tensor) -> Tensor:
    """A loss with a module of its file."""
    return GLOBAL(output).sum()


def test_a_loss_without_modules_brings_none() -> None:
    model = nn.Linear(2, 2)
    assert not modules_of(None, model)
    assert not modules_of(torch.nn.functional.mse_loss, model)
    assert not modules_of(lambda output: (output * model.weight).sum(), model)  # the model's own


def test_modules_are_found_once_and_named_apart() -> None:
    model, one, other = nn.ModuleDict({"loss": nn.Linear(2, 2)}), nn.Linear(2, 2), nn.Linear(2, 2)
    assert modules_of(one, nn.Linear(2, 2)) == {"loss": one}
    assert modules_of(one, model) == {"loss_": one}
    loss = functools.partial(lambda first, output: other(first(output)) + first(output), one)
    assert list(modules_of(loss, nn.Linear(2, 2)).values()) == [other, one]
    assert list(modules_of(with_global, model).values()) == [GLOBAL]


def test_modules_without_tensors_come_last() -> None:
    one, mean = nn.Linear(2, 2), nn.MSELoss()
    assert modules_of(mean, nn.Linear(2, 2)) == {"loss": mean}
    assert modules_of(lambda output: mean(output, one(output)), nn.Linear(2, 2)) == {"loss": one, "loss_1": mean}
    model = nn.Sequential(mean, one)
    assert not modules_of(lambda output: mean(output, output), model)


def test_functions_that_call_each_other_end() -> None:
    def first(output: Tensor) -> Tensor:
        return second(output)

    def second(output: Tensor) -> Tensor:
        return first(output)

    assert not modules_of(first, nn.Linear(2, 2))


def test_parameters_and_buffers_are_read_from_the_module_itself() -> None:
    """Also parts of them, and without a gradient: a placed step would never see a change."""
    module, x = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2), nn.BatchNorm1d(2)), torch.empty(3, 4)
    weight, mean = module[1].weight, module[2].running_mean
    for kind, held in (
        *(("parameter '1.weight'", part) for part in (weight, weight.detach(), weight.data[:1], weight[0])),
        ("buffer '2.running_mean'", mean),
    ):
        with pytest.raises(CaptureError, match=f"holds the {kind} itself, .*: read it from the module each time"):
            capture_training(module, [x], lambda y, held=held: y.mean() + held.square().sum())
    aside = Made(lambda m, x: m.inner(x) * m.kept[0], inner=module[1], kept=[weight[:, 0]])
    with pytest.raises(CaptureError, match=r"holds the parameter 'inner.weight' itself"):
        capture_inference(aside, [x])
    graph = capture_training(module, [x], lambda y: y.mean() + module[1].weight.square().sum())
    assert sum(kind == "parameter" for kind in graph.op_types) == 6
