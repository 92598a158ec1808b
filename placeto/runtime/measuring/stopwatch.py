"""Time stamps between the calls of a program: by the clock of the host for a CPU, by events for a GPU.

On a GPU calls return before they are done. Each stamp there is an event, with the time at which it was launched. Every
`_QUEUE` calls the GPU is made to wait, by a kernel that spins, while the calls are queued. Then it runs them back to
back, and the events show how long it computes, not how long it waits for Python. The time of a call is the longer of
computing and launching, because the next call can't begin before both are done. Calls without a kernel for the GPU are
made by the host, which waits for the values that they need. They are timed in a pass that waits after every call.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from placeto.runtime.local_devices import LocalDevice

_QUEUE = 100  # calls; a GPU's queue takes about 1,000 kernels before launching waits
LEAST = 5
"""Runs of a function that count, at least, where several take turns."""
_SPIN_CYCLES = 10_000_000  # 5 ms or more; launching `_QUEUE` calls takes less


class CpuStopwatch:
    """Stamps of a CPU: nanoseconds of the clock.

    The time of a stamp is measured again with each pass, and the least counts. Other programs on the core can only make
    it longer, and one such disturbance must not be subtracted from all calls.
    """

    stamp = staticmethod(time.perf_counter_ns)

    def __init__(self) -> None:
        self.cost_us = _cost_us(self.stamp)

    def times_us(self, stamps: Sequence[int]) -> np.ndarray:
        """Return the microseconds of each call, without the time of the stamp itself."""
        self.cost_us = min(self.cost_us, _cost_us(self.stamp))
        return np.maximum(np.diff(stamps) / 1e3 - self.cost_us, 0.0)


class CudaStopwatch:
    """Stamps of a GPU: an event that ends a call and one that begins the next, with the host's times of both."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.count = 0
        self.cost_us = _cost_us(self._event)

    def stamp(self) -> tuple[Any, float, Any, float]:
        """Return (end of the last call, the host's time then, beginning of the next call, the host's time then)."""
        now, end = time.perf_counter(), self._event()
        self.count += 1
        if self.count % _QUEUE != 1:
            return end, now, end, now
        torch.cuda.synchronize(self.device)
        torch.cuda._sleep(_SPIN_CYCLES)
        start = self._event()
        return end, now, start, time.perf_counter()

    def settled(self) -> int:
        """Return nanoseconds of the host's clock once the GPU is done: a stamp for calls that the host makes."""
        torch.cuda.synchronize(self.device)
        return time.perf_counter_ns()

    def times_us(self, stamps: Sequence[tuple[Any, float, Any, float]]) -> np.ndarray:
        """Return the microseconds of each call: the longer of computing and launching."""
        torch.cuda.synchronize(self.device)
        self.count = 0
        pairs = list(pairwise(stamps))
        computing = [before[2].elapsed_time(after[0]) * 1e3 for before, after in pairs]
        launching = [(after[1] - before[3]) * 1e6 - self.cost_us for before, after in pairs]
        return np.maximum(computing, np.maximum(launching, 0.0))

    def _event(self) -> Any:
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self.device))
        return event


def stopwatch(device: LocalDevice) -> CpuStopwatch | CudaStopwatch:
    """Return a stopwatch for a device; to be called in the device's thread."""
    return CpuStopwatch() if device.is_cpu else CudaStopwatch(device.torch_device)


def clock(device: LocalDevice) -> float:
    """Return a clock's seconds once the device is done, to time whole steps.

    On a CPU it is the clock of this thread's CPU time, so that other programs on its core don't count.
    """
    device.synchronize()
    return time.thread_time() if device.is_cpu else time.perf_counter()


def took_us(device: LocalDevice, function: Callable[..., object], *values: object) -> float:
    """Call a function, and return the microseconds until the device is done."""
    start = clock(device)
    function(*values)
    return (clock(device) - start) * 1e6


def in_turns(
    functions: Sequence[Callable[[], object]], seconds: float, least: int = LEAST, warm_up: int = 1
) -> list[np.ndarray]:
    """Call functions in turns for some seconds; return the microseconds of the runs of each, at least `least` of them.

    The first runs of each, `warm_up` of them, don't count.
    """
    times: list[list[float]] = [[] for _ in functions]
    end = time.perf_counter() + seconds
    while len(times[0]) < least + warm_up or time.perf_counter() < end:
        for function, runs in zip(functions, times, strict=True):
            start = time.perf_counter()
            function()
            runs.append((time.perf_counter() - start) * 1e6)
    return [np.array(runs[warm_up:]) for runs in times]


def _cost_us(stamp: Callable[[], Any]) -> float:
    """Return the microseconds that a stamp takes: the median of the time of two less that of one."""
    times = []
    for _ in range(200):
        start = time.perf_counter()
        stamp()
        stamp()
        middle = time.perf_counter()
        stamp()
        times.append((middle - start) - (time.perf_counter() - middle))
    return max(float(np.median(times)) * 1e6, 0.0)
