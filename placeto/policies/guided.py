"""Placing one graph with a trained iterative policy: cheap heuristics, a greedy sweep, roll-outs, annealing.

Legend: G groups, D devices, S starts, C instances.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import nn

from placeto.cost import PlacementProblem
from placeto.env import EnvConfig, EnvState, reset, step
from placeto.features import Instance, InstanceBatch, make_instance
from placeto.heuristics.common import Rule
from placeto.heuristics.list_scheduling import try_heft
from placeto.heuristics.search import CHEAP, DEFAULT_SIMULATIONS, annealing, best_cheap, round_to_groups
from placeto.placer import Evaluator, PlacementResult
from placeto.policies.base import PairDistribution

_ROLL_OUTS = 4  # simulations of the roll-outs for each group, at most
_SHARE = 0.6  # of the simulations that the sweep leaves go to the roll-outs, at most
_SECONDS = 0.25  # of the time that is left goes to the sweep, and so much again to the roll-outs, at most
_HEAT = 0.6  # temperature of the roll-outs: a predicted change of so many per cent makes a move e times less likely
_MANY = 1 << 60  # simulations: no limit
_WORSE = 0.0005  # moves that cost this share of the makespan are kept one time in e


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
    """A trained policy as a placer: best cheap heuristic, a greedy sweep of the policy, its roll-outs, annealing.

    Never worse than the best cheap heuristic that the budget allows. Without a budget it ends with the sweep, which is
    the policy's zero-shot answer and takes a simulation a group. With a budget of 0 simulations that answer begins
    from HEFT, and what the policy's own observations simulate is not counted.
    """

    default_simulations = DEFAULT_SIMULATIONS  # of `placeto place`

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
        if simulations == 0:
            return self._answer(instance, seconds, seed, began)
        evaluator = Evaluator(problem, instance.groups, simulations, seconds, began)
        start, score = best_cheap(evaluator, seed)
        if problem.num_devices > 1 and 0 < score < math.inf and not evaluator.exhausted:
            with evaluator.limited(_MANY, _time_box(evaluator)):
                self._sweep(instance, evaluator, start)
            if simulations is not None or seconds is not None:
                rng = np.random.default_rng(seed)
                self._roll_out(instance, evaluator, rng)
                if not evaluator.exhausted:
                    annealing(evaluator, evaluator.best_groups[0], rng)
        return evaluator.result()

    def _answer(self, instance: Instance, seconds: float | None, seed: int, began: float) -> PlacementResult:
        """The sweep from HEFT's placement, none of it counted."""
        problem, groups = instance.problem, instance.groups
        evaluator = Evaluator(problem, groups, None, seconds, began)
        try_heft(evaluator, seed)
        if evaluator.best is not None and problem.num_devices > 1 and evaluator.best_score > 0:
            self._sweep(instance, evaluator, round_to_groups(problem, groups, evaluator.best))
        result = evaluator.result()
        return replace(result, simulations=0, history=((0, result.seconds, result.makespan_us),))

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
            action = int(self._distribution(state).mode())
            moved = state.placement[0].copy()
            moved[action // devices] = action % devices
            evaluator.score(moved)
            state = step(batch, self.env, state, np.array([action]))

    def _roll_out(self, instance: Instance, evaluator: Evaluator, rng: np.random.Generator) -> None:
        """From the best placement on try moves as likely as the policy finds them, and keep those that hardly hurt.

        What is tried is drawn without replacement until a move is kept; then the policy looks again. No placement is
        tried twice. Ends with its share of the budget, or where all moves were tried in vain. A policy that was
        trained to follow a traversal has no say in which node moves: there are no roll-outs with it.
        """
        here, score = evaluator.best_groups
        if evaluator.exhausted or self.env.order != "policy" or not 0 < score < math.inf:
            return
        batch, devices = InstanceBatch.of([instance]), instance.problem.num_devices
        known = {here.tobytes()}
        most = evaluator.simulations + _ROLL_OUTS * instance.groups.num_groups
        if evaluator.limit is not None:
            most = min(most, evaluator.simulations + math.ceil(_SHARE * (evaluator.limit - evaluator.simulations)))
        with evaluator.limited(most, _time_box(evaluator)):
            kept = True
            while kept and not evaluator.exhausted:
                state = reset(batch, self.env, np.zeros(1, np.int64), here[None])
                odds = self._distribution(state, _HEAT).log_probs[0].numpy()
                drawn = np.argsort(-(odds + rng.gumbel(size=len(odds))), kind="stable")[: np.isfinite(odds).sum()]
                kept = False
                for action in drawn:
                    moved = here.copy()
                    moved[action // devices] = action % devices
                    if (key := moved.tobytes()) in known:
                        continue
                    known.add(key)
                    if evaluator.exhausted:
                        return
                    then = evaluator.score(moved)
                    if then <= score - _WORSE * evaluator.best_score * math.log(1.0 - rng.random()):
                        here, score, kept = moved, then, True
                        break

    def _distribution(self, state: EnvState, temperature: float = 1.0) -> PairDistribution:
        """What the policy would do next."""
        with torch.no_grad():
            logits, _ = self.policy(state.data)
        return PairDistribution.from_logits(logits, state.data, temperature)


def _time_box(evaluator: Evaluator) -> float | None:
    """When a part of the work has to end that looks at the policy for every simulation; None without a clock.

    In the time of such a look a plain search makes several simulations.
    """
    if evaluator.seconds_limit is None:
        return None
    return evaluator.seconds + _SECONDS * max(0.0, evaluator.seconds_limit - evaluator.seconds)


def guided_placer(checkpoint: Mapping[str, Any], policy: nn.Module) -> GuidedPlacer:
    """A placer from a checkpoint and a policy of its config, with the parameters that validated best."""
    policy.load_state_dict(checkpoint["best_parameters"])
    return GuidedPlacer(policy, EnvConfig(**checkpoint["config"]["env"]))
