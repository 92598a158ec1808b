"""Which modules a loss brings along."""

import functools

import pytest
import torch
from torch import Tensor, nn

from placeto.capture.inputs.loss_modules import modules_of
from placeto.capture.trace import capture_training
from placeto.errors import CaptureError

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


def test_a_parameter_is_read_from_the_module_itself() -> None:
    module, x = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2)), torch.empty(3, 4)
    weight = module[1].weight
    message = "holds the parameter '1.weight' itself, .*: read it from the module each time"
    with pytest.raises(CaptureError, match=message):
        capture_training(module, [x], lambda y: y.mean() + weight.square().sum())
    graph = capture_training(module, [x], lambda y: y.mean() + module[1].weight.square().sum())
    assert sum(kind == "parameter" for kind in graph.op_types) == 4
