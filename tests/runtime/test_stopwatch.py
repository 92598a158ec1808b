"""Stamps. Those of GPUs are made of stand-ins here: what is tested is the arithmetic, not CUDA."""

import time

import numpy as np
import pytest
import torch

from placeto.runtime.measuring.stopwatch import CpuStopwatch, CudaStopwatch, in_turns


def test_stamps_of_a_cpu_are_microseconds_without_their_own_cost() -> None:
    watch = CpuStopwatch()
    assert 0 <= watch.cost_us < 50
    watch.cost_us = 0.0  # the least that was measured counts
    assert watch.times_us([0, 5000, 5500]) == pytest.approx([5.0, 0.5])
    start = watch.stamp()
    time.sleep(0.01)
    assert watch.times_us([start, watch.stamp()])[0] >= 9_000


def test_one_disturbed_measurement_of_the_stamps_does_not_shorten_all_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    costs = iter([7.0, 1.0, 3.0])  # as it is made, after the first pass, after the second
    monkeypatch.setattr("placeto.runtime.measuring.stopwatch._cost_us", lambda stamp: next(costs))
    watch = CpuStopwatch()
    for _ in range(2):
        assert watch.times_us([0, 5000, 5500]) == pytest.approx([4.0, 0.0])


class Event:
    """A stand-in: every event is 10 us after the one before."""

    made = 0

    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing

    def record(self, stream: object) -> None:
        Event.made += 1
        self.time_us = 10.0 * Event.made

    def elapsed_time(self, other: "Event") -> float:
        return (other.time_us - self.time_us) / 1e3


def test_a_call_on_a_gpu_takes_the_longer_of_computing_and_launching(monkeypatch: pytest.MonkeyPatch) -> None:
    spins: list[int] = []
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: None)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    monkeypatch.setattr(torch.cuda, "_sleep", spins.append)
    watch = CudaStopwatch(torch.device("cuda:0"))
    stamps = []
    for number in range(250):
        stamps.append(watch.stamp())
        if number == 120:
            time.sleep(0.002)
    times = watch.times_us(stamps)
    assert len(spins) == 3  # the queue is filled anew every 100 calls
    assert times.shape == (249,)
    assert times[120] >= 2000  # its launch
    assert np.median(times) == pytest.approx(10, rel=0.01)  # its computing; the spin between two stamps doesn't count


def test_calls_of_the_host_are_timed_once_the_gpu_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: None)
    watch = CudaStopwatch(torch.device("cuda:0"))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: time.sleep(0.01))
    start = time.perf_counter_ns()
    assert watch.settled() - start >= 9e6


def test_functions_take_turns() -> None:
    called: list[str] = []
    times = in_turns([lambda: called.append("a"), lambda: called.append("b")], 0.0, 2)
    assert called == ["a", "b"] * 3
    assert [len(of) for of in times] == [2, 2], "the first run doesn't count"
