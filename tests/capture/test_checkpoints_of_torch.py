"""The private part of torch that traces of checkpoints replace is the one that torch calls, or is refused."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.utils.checkpoint as checkpoints
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from placeto.capture.trace import capture_training
from placeto.capture.tracing import checkpoints as ours
from placeto.errors import CaptureError
from tests.captures import Checkpointed, Made, square


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    ours._name_of_steps.cache_clear()
    yield
    ours._name_of_steps.cache_clear()


def test_steps_are_replaced_where_torch_calls_them() -> None:
    seen = list[object]()

    def made(function: ours.Function, preserve: bool, steps: ours.Steps) -> Any:
        def again(x: torch.Tensor) -> Any:
            seen.append("again")
            return function(x)

        seen.append(preserve)
        return steps(again)

    x = torch.ones(1, requires_grad=True)
    with ours.checkpointing_by(made):
        checkpoints.checkpoint(torch.sin, x, use_reentrant=False, preserve_rng_state=False).backward()
        checkpoints.checkpoint(torch.sin, x, use_reentrant=False).backward()
    checkpoints.checkpoint(torch.sin, x, use_reentrant=False).backward()
    assert seen == [False, "again", True, "again"]


def test_a_torch_that_calls_something_else_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ours, "_STEPS", ("get_device_states", "not there"))  # of these, torch calls none
    with pytest.raises(
        CaptureError, match=r"activation checkpoints of torch .* can't be traced, .* install torch 2\.13 or 2\.14"
    ):
        capture_training(Checkpointed(4, 1), [torch.empty(2, 4)])


def whole(layer: Any, x: torch.Tensor) -> Any:
    """A checkpoint that recomputes all of a layer, although its last product is needed by no gradient."""
    return checkpoints.checkpoint(layer, x, use_reentrant=False, early_stop=False)


def whole_by_context(layer: Any, x: torch.Tensor) -> Any:
    with checkpoints.set_checkpoint_early_stop(False):
        return checkpoints.checkpoint(layer, x, use_reentrant=False)


def stopped(layer: Any, x: torch.Tensor) -> Any:
    return checkpoints.checkpoint(layer, x, use_reentrant=False)


def reentrant(layer: Any, x: torch.Tensor) -> Any:
    return checkpoints.checkpoint(layer, x.clone() if x.requires_grad else x.requires_grad_(), use_reentrant=True)


@pytest.mark.parametrize("again", [whole, whole_by_context, stopped, reentrant])
def test_a_checkpoint_stops_early_where_it_does_in_eager(again: Any) -> None:
    layer = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
    module, x = Made(lambda self, x: again(self.layer, again(self.layer, x)), layer=layer), torch.randn(2, 4)
    with FlopCounterMode(display=False) as counter:
        module(x).square().mean().backward()
    assert capture_training(module, [x], square).flops.sum() == counter.get_total_flops()
