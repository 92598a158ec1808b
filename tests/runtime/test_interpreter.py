"""Programs that torch's interpreter runs: they compute, and keep, what those run by Python do."""

import gc
import threading
import time
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional

from placeto.runtime.interpreter import _ENDS, Interpreted, NotInterpreted, executable
from placeto.runtime.measuring.meter import Meter
from placeto.runtime.program import Program
from placeto.runtime.real_steps import RealStep, real_inference, real_training


def conv() -> RealStep:
    layers = [nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.GELU(), nn.MaxPool2d(2), nn.Dropout(0.5), nn.Flatten()]
    module = nn.Sequential(*layers, nn.LazyLinear(3))
    module(torch.randn(5, 2, 8, 8))
    return real_training(module, [torch.randn(5, 2, 8, 8)], functional.cross_entropy, targets=[torch.arange(5) % 3])


def lstm() -> RealStep:
    return real_training(nn.LSTM(4, 6, 2), [torch.randn(7, 3, 4)], lambda out: out[0].square().sum())


def attention() -> RealStep:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    mask = nn.Transformer.generate_square_subsequent_mask(6)
    return real_training(layer, [torch.randn(3, 6, 8), mask], lambda y: y.std())


def split() -> RealStep:
    class Split(nn.Module):
        def forward(self, words: torch.Tensor, scale: float) -> dict[str, torch.Tensor]:
            first, second = words.masked_fill(words > 2, -float("inf")).chunk(2)
            return {"sum": first * scale + second, "index": words[[0, 1]], "words": words}

    return real_inference(Split(), {"words": torch.arange(4.0), "scale": 0.5})


STEPS = pytest.mark.parametrize("make", [conv, lstm, attention, split])


@STEPS
def test_it_computes_the_same_to_the_bit_and_keeps_the_same(make: Callable[[], RealStep]) -> None:
    step = make()
    program = Program.of(step.capture.traced)
    known = [leaf for leaf in step.leaves if isinstance(leaf, torch.Tensor)]
    results, peaks = [], []
    for function in (program.compile(), Interpreted(program)):
        torch.manual_seed(0)
        with torch.no_grad(), Meter(known) as meter:
            results.append(function(*step.leaves))
        peaks.append(meter.peak())
    assert peaks[0] == peaks[1] > 0
    for ours, theirs in zip(*results, strict=True):
        assert torch.equal(ours, theirs) if isinstance(ours, torch.Tensor) else ours == theirs


@STEPS
def test_times_are_those_of_the_calls(make: Callable[[], RealStep]) -> None:
    step = make()
    program = Program.of(step.capture.traced)
    _, times = Interpreted(program, timed=True)(*step.leaves)
    assert len(times) == len(program.calls) + 1
    assert times == sorted(times)


def test_values_cross_and_nothing_is_kept() -> None:
    program = Program.of(real_inference(nn.ReLU(), [torch.zeros(2)]).capture.traced)
    call, sent, before = program.calls[0], [], dict(_ENDS)
    function = Interpreted(replace(program, sends={call: [sent.append]}))
    (result,) = function(torch.tensor([-1.0, 2.0]))
    assert torch.equal(result, sent[0])
    taken = Interpreted(replace(program, receives={call: lambda: torch.ones(3)}))
    assert torch.equal(taken(torch.zeros(2))[0], torch.ones(3))
    del function, taken
    gc.collect()
    assert before == _ENDS


def test_two_run_at_once() -> None:
    """Python goes on while a program runs."""
    x = torch.randn(400, 400)
    step = real_inference(nn.Sequential(*(nn.Linear(400, 400) for _ in range(60))), [x])
    function, ticks, done = Interpreted(Program.of(step.capture.traced)), [], threading.Event()
    thread = threading.Thread(target=lambda: (function(*step.leaves), done.set()))
    thread.start()
    while not done.is_set():
        ticks.append(time.perf_counter())
        time.sleep(0)
    thread.join()
    assert len(ticks) > 50


def test_what_it_cant_run_python_runs() -> None:
    step = real_inference(nn.ReLU(), [torch.zeros(2)])
    program = Program.of(step.capture.traced)
    with pytest.raises(NotInterpreted):
        Interpreted(replace(program, device=torch.device("meta")))
    call = program.calls[0]
    call.target = lambda x: x + 1.0
    with pytest.raises(NotInterpreted):
        Interpreted(program)
    assert executable(program)(torch.zeros(2))[0].tolist() == [1.0, 1.0]
    _, times = executable(program, time.perf_counter_ns)(torch.zeros(2))
    assert len(times) == 2


def test_an_error_is_that_of_the_op() -> None:
    step = real_inference(nn.Embedding(4, 2), [torch.tensor([3])])
    function = Interpreted(Program.of(step.capture.traced))
    with pytest.raises(IndexError, match="index out of range"):
        function(*step.leaves[:-1], torch.tensor([9]))
