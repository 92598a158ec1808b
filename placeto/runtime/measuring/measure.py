"""Measure the calls of steps on a device, in the steps themselves.

- In the step: each call is timed between its neighbours, with the caches that they leave it. Sums of ops that are timed
  alone, in a loop, are off by up to a third either way, on the same tensors or on others: see
  experiments/results/profiling.md.
- Warm-up: the first pass of each step, stamped and plain, doesn't count.
- Noise: the time of a call is its median over the passes, which other work on the machine hardly changes. The time of a
  signature is the mean over its calls, so that the sum stays that of the step.
- Clocks that drift, steps that differ: stamped and plain passes of all steps take turns until the time is up.
- Allocator: freed memory is kept, see `placeto.runtime.local_devices.keep_memory`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from placeto.errors import RunError
from placeto.runtime.interpreter import executable
from placeto.runtime.local_devices import LocalDevice
from placeto.runtime.measuring.stopwatch import CudaStopwatch, stopwatch, took_us
from placeto.runtime.program import Program
from placeto.runtime.real_steps import RealStep

LEAST, MOST = 3, 50
"""The least number of passes that count, however long they take, and the greatest."""


@dataclass(frozen=True, eq=False)
class Measured:
    """A step on one device.

    Legend: C calls.
    """

    step: RealStep
    device: LocalDevice
    program: Program
    call_us: np.ndarray  # (C,) of each call, with the release of tensors that no later call needs
    step_us: float  # of the whole program, without stamps
    eager_us: float | None  # of the module's own step, on the CPU; None if it wasn't run

    def by_node(self) -> dict[str, float]:
        """Return the microseconds of each call, by the name of its traced node."""
        return {node.name: float(us) for node, us in zip(self.program.calls, self.call_us, strict=True)}


def measure(steps: Sequence[RealStep], device: LocalDevice, seconds: float) -> list[Measured]:
    """Measure steps on a device, in its thread, for some seconds.

    Raises:
        RunError: a step fails there, such as for lack of memory.
    """
    return device.run(_measure, steps, device, seconds)


def _measure(steps: Sequence[RealStep], device: LocalDevice, seconds: float) -> list[Measured]:
    watch = stopwatch(device)
    programs = [Program.of(step.unrolled.traced, device.torch_device) for step in steps]
    inputs = [program.moved(step.leaves) for program, step in zip(programs, steps, strict=True)]
    stamped = [executable(program, watch.stamp) for program in programs]
    plain = [executable(program) for program in programs]
    by_host = [np.array([program.kernel(node) is None for node in program.calls]) for program in programs]
    calls: list[list[np.ndarray]] = [[] for _ in steps]
    whole: list[list[float]] = [[] for _ in steps]
    eager: list[list[float]] = [[] for _ in steps]

    with torch.no_grad():
        end, passes = time.perf_counter() + seconds, 0
        while passes <= LEAST or (passes <= MOST and time.perf_counter() < end):
            for i, step in enumerate(steps):
                try:
                    calls[i].append(watch.times_us(stamped[i](*inputs[i])[1]))
                    if isinstance(watch, CudaStopwatch) and by_host[i].any():
                        waited = np.diff(programs[i].compile(watch.settled)(*inputs[i])[1]) / 1e3
                        calls[i][-1][by_host[i]] = waited[by_host[i]]
                    whole[i].append(took_us(device, plain[i], *inputs[i]))
                    if device.is_cpu and step.eager is not None:
                        eager[i].append(took_us(device, step.eager))
                except Exception as problem:  # whatever a kernel raises
                    reason = str(problem).strip().split("\n")[0]
                    raise RunError(f"{step.name} on {device.name}: {type(problem).__name__}: {reason}") from problem
            passes += 1
    return [
        Measured(step, device, program, np.median(c[1:], axis=0), _median(w), _median(e) if e else None)
        for step, program, c, w, e in zip(steps, programs, calls, whole, eager, strict=True)
    ]


def _median(times: Sequence[float]) -> float:
    return float(np.median(times[1:]))
