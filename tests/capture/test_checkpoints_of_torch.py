"""The private part of torch that traces of checkpoints replace is the one that torch calls, or is refused."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.utils.checkpoint as checkpoints
from torch import nn

from placeto.capture.trace import capture_training
from placeto.capture.tracing import checkpoints as ours
from placeto.errors import CaptureError


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    ours._name_of_steps.cache_clear()
    yield
    ours._name_of_steps.cache_clear()


class Checkpointed(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return checkpoints.checkpoint(super().forward, x, use_reentrant=False)  # type: ignore[no-any-return]


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
        capture_training(Checkpointed(4, 4), [torch.empty(2, 4)], lambda y: y.sum())
