"""Placing one graph with a trained one-shot policy: its most likely placement, then samples of it, then annealing.

Legend: N ops, U units, K samples.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from placeto.heuristics.local_search.annealing import annealing
from placeto.heuristics.local_search.starts import best_cheap, round_best
from placeto.heuristics.repair import repair
from placeto.policies.learned_placer import LearnedPlacer, trained_devices
from placeto.policies.one_shot.inputs import OneShotInput, make_input
from placeto.policies.one_shot.one_shot_policy import OneShotPolicy
from placeto.problem.problem import PlacementProblem
from placeto.simulator.evaluator import Evaluator, PlacementResult
from placeto.simulator.schedule import simulate

SAMPLES = 16  # samples that are drawn at once
SHARE = 0.25  # share of the budget that goes to samples, after the heuristics and the most likely placement


class SamplingPlacer(LearnedPlacer):
    """A trained one-shot policy as a placer.

    Without a budget, or with 0 simulations, the result is the policy's most likely placement, its zero-shot answer. One
    simulation says how long it takes. If the placement doesn't fit into memory, it is repaired with a few more.

    With a budget, the constructive placers come first, and then the most likely placement. A quarter of what is left
    goes to samples of the policy, and the rest to annealing from the best placement met. So the result is never worse
    than the best constructive placement.
    """

    def __init__(self, policy: OneShotPolicy, name: str = "", most_devices: float = math.inf) -> None:
        self.policy = policy.eval()
        self.name, self.most_devices = name, most_devices

    def place(
        self, problem: PlacementProblem, simulations: int | None, seconds: float | None, seed: int, began: float
    ) -> PlacementResult:
        """Place a graph by samples and annealing within a budget; see the class."""
        device = next(self.policy.parameters()).device
        graph = make_input(problem, self.policy.units).to(device)
        unit = graph.unit.cpu().numpy()
        if simulations == 0 or simulations is seconds is None:  # no groups are made here: large graphs take long
            schedule = simulate(problem, self._placements(graph, unit, 1, None)[0])
            took, span = time.perf_counter() - began, schedule.makespan_us
            if schedule.fits:
                return PlacementResult(schedule.placement, span, True, 1, took, ((1, took, span),), problem)
            evaluator = Evaluator(problem, began=began)
            evaluator.absorb(schedule.placement, span, schedule.overflow, 1)
            repair(evaluator)
            return evaluator.result()
        evaluator = Evaluator(problem, None, simulations, seconds, began)
        best_cheap(evaluator, seed)
        if problem.num_devices > 1 and 0 < evaluator.best_score < math.inf and not evaluator.exhausted:
            evaluator.score_ops(self._placements(graph, unit, 1, None)[0])
            generator = torch.Generator(device).manual_seed(seed)
            spent = evaluator.progress
            while not evaluator.exhausted and evaluator.progress < spent + SHARE * (1.0 - spent):
                for placement in self._placements(graph, unit, SAMPLES, generator):
                    if not evaluator.exhausted:
                        evaluator.score_ops(placement)
            round_best(evaluator)
            annealing(evaluator, np.random.default_rng(seed))
        return evaluator.result()

    def _placements(
        self, graph: OneShotInput, unit: np.ndarray, count: int, generator: torch.Generator | None
    ) -> np.ndarray:
        """Draw K = `count` placements (K, N) of ops; without a generator they are the most likely one."""
        return self.policy.sample(graph, count, generator).placement.cpu().numpy()[:, unit]


def sampling_placer(checkpoint: Mapping[str, Any], policy: OneShotPolicy) -> SamplingPlacer:
    """Make a placer from a checkpoint and the policy with its parameters."""
    most = min(policy.max_devices, trained_devices(checkpoint)) if math.isfinite(policy.max_devices) else math.inf
    return SamplingPlacer(policy, checkpoint["placer"], most)
