"""Placing one graph with a trained iterative policy: best cheap heuristic, a greedy sweep, search for what is left.

Legend: G groups, D devices, S starts, C instances.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from placeto.cost import PlacementProblem
from placeto.env import EnvConfig, reset, step
from placeto.features import Instance, InstanceBatch, make_instance
from placeto.heuristics.common import Rule
from placeto.heuristics.search import CHEAP, annealing, best_cheap, round_to_groups
from placeto.placer import Evaluator, PlacementResult
from placeto.policies.base import PairDistribution


@dataclass(frozen=True, eq=False)
class Starts:
    """Placements of an instance by cheap heuristics, ops in groups, best first."""

    placement: np.ndarray  # (S, G) int64
    score: np.ndarray  # (S,) penalised makespan relative to the best single device


def cheap_starts(instance: Instance, rules: Sequence[Rule] = CHEAP, seed: int = 0) -> Starts:
    """Place by each cheap heuristic; ops of a group follow the device that has most of the group's work."""
    problem, groups = instance.problem, instance.groups
    rows = []
    for rule in rules:
        evaluator = Evaluator(problem, groups)
        rule(evaluator, seed)
        if evaluator.best is not None:
            rows.append(round_to_groups(problem, groups, evaluator.best))
    placement = np.unique(np.array(rows, np.int64), axis=0)
    score = Evaluator(problem, groups).score_batch(placement) / problem.single_device_us
    order = np.argsort(score, kind="stable")
    return Starts(placement[order], score[order])


class GuidedPlacer:
    """A trained policy as a placer: best cheap heuristic, one greedy sweep of the policy, annealing from there.

    Never worse than the best cheap heuristic that the budget allows. Without a budget it ends with the sweep, which is
    the policy's zero-shot answer and takes a simulation a group.
    """

    def __init__(self, policy: nn.Module, env: EnvConfig) -> None:
        self.policy = policy.eval()
        self.env = env

    def __call__(
        self,
        problem: PlacementProblem,
        *,
        simulations: int | None = None,
        seconds: float | None = None,
        seed: int = 0,
    ) -> PlacementResult:
        """Place a graph within a budget of simulations or seconds; see the class."""
        began = time.perf_counter()
        instance = make_instance(problem)
        evaluator = Evaluator(problem, instance.groups, simulations, seconds, began)
        start, score = best_cheap(evaluator, seed)
        if problem.num_devices > 1 and 0 < score < math.inf and not evaluator.exhausted:
            self._sweep(instance, evaluator, start)
            if not evaluator.exhausted and (simulations is not None or seconds is not None):
                annealing(evaluator, evaluator.best_groups[0], np.random.default_rng(seed))
        return evaluator.result()

    def _sweep(self, instance: Instance, evaluator: Evaluator, start: np.ndarray) -> None:
        """Offer the evaluator what the policy's most likely moves lead to, each group moved once.

        The environment simulates each of these placements again for its schedule; they count once.
        """
        batch = InstanceBatch.of([instance])
        devices = instance.problem.num_devices
        state = reset(batch, self.env, np.zeros(1, np.int64), start[None])
        for _ in range(instance.groups.num_groups):
            if evaluator.exhausted:
                break
            with torch.no_grad():
                logits, _ = self.policy(state.data)
            action = int(PairDistribution.from_logits(logits, state.data).mode())
            moved = state.placement[0].copy()
            moved[action // devices] = action % devices
            evaluator.score(moved)
            state = step(batch, self.env, state, np.array([action]))


def guided_placer(checkpoint: Mapping[str, Any], policy: nn.Module) -> GuidedPlacer:
    """A placer from a checkpoint and a policy of its config, with the parameters that validated best."""
    policy.load_state_dict(checkpoint["best_parameters"])
    return GuidedPlacer(policy, EnvConfig(**checkpoint["config"]["env"]))
