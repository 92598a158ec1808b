"""What learned placers share: when their seconds begin, in how many threads they work, and what results say."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from placeto.problem.problem import PlacementProblem, check_problem
from placeto.simulator.evaluator import PlacementResult
from placeto.simulator.threads import one_thread
from placeto.simulator.warming import warm_up


class LearnedPlacer(ABC):
    """A trained policy as a placer; networks work in one thread, since their tensors are small."""

    name: str  # that results have
    most_devices: float = math.inf  # on which the policy has learned to place, if it knows devices by their number

    def __call__(
        self, problem: PlacementProblem, *, simulations: int | None = None, seconds: float | None = None, seed: int = 0
    ) -> PlacementResult:
        """Place a graph within a budget of simulations or seconds, which begin once all is compiled; see the class.

        Raises:
            PolicyError: the cluster has more devices than the policy knows, or has learned to place on.
            TypeError: no problem.
        """
        check_problem(problem)
        if problem.num_devices > self.most_devices:
            from placeto.policies.base import PolicyError  # it imports torch

            raise PolicyError(
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
        """The same; `began` is what `time.perf_counter` said when the seconds began."""


def trained_devices(checkpoint: Mapping[str, Any]) -> float:
    """On how many devices at most the policy of a checkpoint was trained; infinite where an older one doesn't say."""
    return int(checkpoint.get("devices") or 0) or math.inf
