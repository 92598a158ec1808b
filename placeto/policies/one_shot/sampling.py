"""Placing one graph with a trained one-shot policy: its most likely placement, samples of it, search for what is left.

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
from placeto.policies.one_shot.base import OneShotPolicy
from placeto.policies.one_shot.inputs import OneShotInput, make_input
from placeto.policies.placer import LearnedPlacer, trained_devices
from placeto.problem.problem import PlacementProblem
from placeto.simulator.evaluator import Evaluator, PlacementResult
from placeto.simulator.schedule import simulate

SAMPLES = 16  # drawn at once
SHARE = 0.25  # of the budget spent on samples


class SamplingPlacer(LearnedPlacer):
    """A trained one-shot policy as a placer.

    Without a budget its most likely placement is the result: the policy's zero-shot answer, one simulation; if it
    doesn't fit into memory it is repaired, with a few simulations more. With a budget, the cheap heuristics are tried
    too, a quarter of it goes to samples of the policy, and the rest to annealing from the best placement met: as with
    the other learned placers, never worse than the best cheap one.
    """

    def __init__(self, policy: OneShotPolicy, name: str = "", most_devices: float = math.inf) -> None:
        self.policy = policy.eval()
        self.name, self.most_devices = name, most_devices

    def place(
        self, problem: PlacementProblem, simulations: int | None, seconds: float | None, seed: int, began: float
    ) -> PlacementResult:
        """Samples and search within a budget; see the class."""
        device = next(self.policy.parameters()).device
        graph = make_input(problem, self.policy.units).to(device)
        unit = graph.unit.cpu().numpy()
        if simulations is None and seconds is None:  # nothing here needs groups, which take long for large graphs
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
            self._search(evaluator, seed)
        return evaluator.result()

    def _placements(
        self, graph: OneShotInput, unit: np.ndarray, count: int, generator: torch.Generator | None
    ) -> np.ndarray:
        """(K, N) placements of ops."""
        return self.policy.sample(graph, count, generator).placement.cpu().numpy()[:, unit]

    def _search(self, evaluator: Evaluator, seed: int) -> None:
        """Anneal from the best placement, brought to groups."""
        round_best(evaluator)
        if not evaluator.exhausted:
            annealing(evaluator, evaluator.best_groups[0], np.random.default_rng(seed))


def sampling_placer(checkpoint: Mapping[str, Any], policy: OneShotPolicy) -> SamplingPlacer:
    """A placer from a checkpoint and a policy of its config, with the parameters that validated best."""
    policy.load_state_dict(checkpoint["best_parameters"])
    return SamplingPlacer(policy, checkpoint["placer"], trained_devices(checkpoint))
