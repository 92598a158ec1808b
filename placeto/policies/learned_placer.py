"""What learned placers share: when their seconds begin, how many threads they use, and the name in their results."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from placeto.errors import PlacerError
from placeto.problem.problem import PlacementProblem, check_problem
from placeto.simulator.evaluator import PlacementResult
from placeto.simulator.threads import one_thread
from placeto.simulator.warming import warm_up


class LearnedPlacer(ABC):
    """A trained policy as a placer. Its network computes in one thread, because its tensors are small."""

    name: str  # the placer's name in its results
    most_devices: float = math.inf  # most devices that the policy was trained on; finite if it tells them by number

    def __call__(
        self, problem: PlacementProblem, *, simulations: int | None = None, seconds: float | None = None, seed: int = 0
    ) -> PlacementResult:
        """Place a graph within a budget of simulations, of seconds, or of both; see the class.

        The seconds begin once all kernels are compiled.

        Raises:
            PlacerError: the cluster has more devices than the policy was made for, or was trained on.
            TypeError: `problem` is no `PlacementProblem`.
        """
        check_problem(problem)
        if problem.num_devices > self.most_devices:
            raise PlacerError(
                f"the policy was trained on {self.most_devices:g} devices at most, the cluster {problem.cluster.name} "
                f"has {problem.num_devices}: it has learned nothing about the others; train on a cluster of as many"
            )
        if seconds is not None:
            warm_up(self, problem, simulations, seconds)
        began = time.perf_counter()
        with one_thread():
            return replace(self.place(problem, simulations, seconds, seed, began), placer=self.name)

    @abstractmethod
    def place(
        self, problem: PlacementProblem, simulations: int | None, seconds: float | None, seed: int, began: float
    ) -> PlacementResult:
        """Place a graph as `__call__` does; `began` is the value of `time.perf_counter` when the seconds began."""


def trained_devices(checkpoint: Mapping[str, Any]) -> float:
    """Return the most devices that a checkpoint's policy was trained on; infinite if the checkpoint doesn't say."""
    return int(checkpoint.get("devices") or 0) or math.inf
