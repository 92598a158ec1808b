"""A compiled step takes its threads, module and gradients with it when it is deleted."""

import gc
import threading
import time
from collections.abc import Callable
from typing import Any
from weakref import ref

import pytest
import torch
from torch import nn

import placeto
from placeto.errors import RunError
from placeto.runtime import placed
from placeto.runtime.program import Program


def linear() -> nn.Module:
    return nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 8))


def random() -> nn.Module:
    return nn.Sequential(nn.Linear(16, 8), nn.Dropout(0.5), nn.BatchNorm1d(8), nn.Dropout(0.5))


def threads_of_devices() -> int:
    return sum(thread.name.startswith("placeto cpu") for thread in threading.enumerate())


def call(step: Any, x: torch.Tensor) -> None:
    step(x)


def count_bytes(step: Any, x: torch.Tensor) -> None:
    step.peak_bytes(x)


def fail(step: Any, x: torch.Tensor) -> None:
    with pytest.raises(RunError):
        step(x[:1])


def only_compile(step: Any, x: torch.Tensor) -> None:
    pass


@pytest.mark.parametrize(
    ("make", "how", "by_python"),
    [
        (linear, {"loss": torch.sum, "micro_batches": 2}, False),
        (linear, {"training": False}, True),
        (random, {"loss": torch.sum}, False),
        (random, {"loss": torch.sum}, True),
    ],
)
def test_it_is_freed_with_its_last_reference(
    make: Callable[[], nn.Module], how: dict[str, Any], by_python: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each step while its module lives, and the module after all of them."""
    if by_python:  # as on GPUs
        monkeypatch.setattr(placed, "executable", Program.compile)
    module, x, before = make(), torch.randn(4, 16), threads_of_devices()
    result = placeto.place(module, (x,), cluster="2xp100", placer="roundrobin", **how)
    gc.collect()  # what the capture leaves
    gc.disable()
    try:
        for use in (only_compile, call, count_bytes, fail):
            step = result.compile(devices=["cpu:0", "cpu:1"])
            use(step, x)
            assert threads_of_devices() == before + 2 * (use in (call, count_bytes))
            kept = [ref(step), ref(step.step)]
            del step
            assert [one() for one in kept if one() is not None] == [], use
            until = time.monotonic() + 10.0
            while threads_of_devices() > before and time.monotonic() < until:
                time.sleep(0.01)
            assert threads_of_devices() == before, use
        kept = [ref(module), *map(ref, module.parameters())]
        kept += [ref(p.grad) for p in module.parameters() if p.grad is not None]
        del result, module
        assert [one() for one in kept if one() is not None] == []
    finally:
        gc.enable()
