"""Measured step times, for placers that learn from real runs as those of Mirhoseini et al. 2017 did."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from placeto.errors import RunError
from placeto.problem.problem import PlacementProblem
from placeto.runtime.local_devices import LocalDevice
from placeto.runtime.measuring.stopwatch import in_turns
from placeto.runtime.placed import PlacedStep
from placeto.runtime.real_steps import RealStep
from placeto.simulator.schedule import simulate

WARM_UP, RUNS = 2, 5
"""Number of first runs of a placement that don't count, and of runs after them, whose median counts."""
FAILED = 10.0
"""A placement that can't be run, such as for lack of memory, counts as so many times the step on one device."""


class MeasuredSteps:
    """Runs placements of steps, and measures how long they take.

    Legend: C problems.

    Args:
        problems: (C,) the problems; their simulation gives the order in which a placement is run.
        steps: (C,) the step of each problem.
        devices: the devices of the problems' cluster.

    Raises:
        RunError: a step can't be run on the first device alone.
    """

    def __init__(
        self, problems: Sequence[PlacementProblem], steps: Sequence[RealStep], devices: Sequence[LocalDevice]
    ) -> None:
        self.problems, self.steps, self.devices = problems, steps, devices
        self._known: dict[tuple[int, bytes], float] = {}
        self._copies: list[dict[tuple[int, torch.device], Tensor]] = [{} for _ in steps]
        self.one_device_us = [
            self._run(number, np.zeros(problem.num_ops, np.int64)) for number, problem in enumerate(problems)
        ]

    def __call__(self, number: int, placement: np.ndarray) -> float:
        """Return the microseconds of a step, the median of `RUNS` runs; a placement that is known isn't run again.

        Args:
            number: the number of the problem.
            placement: (N,) device of each op.
        """
        key = number, np.ascontiguousarray(placement, np.int64).tobytes()
        if key not in self._known:
            try:
                self._known[key] = self._run(number, placement)
            except (RunError, MemoryError):
                self._known[key] = FAILED * self.one_device_us[number]
        return self._known[key]

    def best_us(self, number: int) -> float:
        """Return the microseconds of a problem's fastest placement that was run, that on one device included."""
        times = [us for (problem, _), us in self._known.items() if problem == number]
        return min([self.one_device_us[number], *times])

    def _run(self, number: int, placement: np.ndarray) -> float:
        step, schedule = self.steps[number], simulate(self.problems[number], placement)
        run = PlacedStep(step.capture, schedule, self.devices).ready(step.leaves, self._copies[number])
        return float(np.median(in_turns([run], 0.0, RUNS, WARM_UP)[0]))
