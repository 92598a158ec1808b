"""Placing one graph with a trained iterative policy: a greedy pass, then roll-outs from the best placement met.

Legend: G groups, D devices, S starts, B episodes.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from placeto.cost import PlacementProblem
from placeto.env import EnvConfig, EnvState, reset, step
from placeto.features import Instance, InstanceBatch, make_instance
from placeto.grouping import expand
from placeto.heuristics import HEURISTICS
from placeto.placer import PlacementResult
from placeto.policies.base import PairDistribution
from placeto.simulator import simulate, simulate_batch

CHEAP = ("single", "expert", "metis", "heft", "etf")
ROLLOUT_EPISODES = 4
ROLLOUT_MOVES = 8
ROLLOUT_TEMPERATURE = 0.7


@dataclass(frozen=True, eq=False)
class Starts:
    """Placements by the cheap heuristics, in groups, best first."""

    placement: np.ndarray  # (S, G) int64
    score: np.ndarray  # (S,) penalised makespan relative to the best single device
    best: PlacementResult  # of the heuristics themselves, which may place op by op
    simulations: int  # all that it took


def cheap_starts(instance: Instance, simulations: int | None = None, seed: int = 0) -> Starts:
    """Place by each cheap heuristic; ops of a group follow the device that has most of the group's time.

    With a limit on simulations only as many heuristics run as it allows, at least one result comes back if the limit
    is 2 or more.
    """
    problem, group = instance.problem, instance.groups.group
    groups, devices = instance.groups.num_groups, problem.num_devices
    rows: list[np.ndarray] = []
    results: list[PlacementResult] = []
    used = 0
    weight = problem.op_time.mean(1) + 1e-9
    for name in CHEAP:
        left = None if simulations is None else simulations - used - len(rows) - 1
        if left is not None and left < 1:
            break
        result = HEURISTICS[name](problem, simulations=left, seed=seed)
        used += result.simulations
        votes = np.zeros((groups, devices))
        np.add.at(votes, (group, result.placement), weight)
        rows.append(votes.argmax(1))
        results.append(result)
    placement = np.unique(np.array(rows, np.int64), axis=0)
    batch = InstanceBatch.of([instance])
    ops = placement[:, group]
    makespan, overflow = simulate_batch(batch.problems, np.zeros(len(ops), np.int64), ops)
    score = makespan * (1.0 + 10.0 * overflow) / problem.single_device_us
    order = np.argsort(score, kind="stable")
    best = min(results, key=lambda r: (not r.fits, r.makespan_us))
    return Starts(placement[order], score[order], best, used + len(placement))


class GuidedPlacer:
    """A trained policy as a placer: best cheap heuristic, one greedy sweep, roll-outs while the budget lasts.

    Never worse than the best cheap heuristic that the budget allows. Without a budget it stops after the sweep.
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
        """Place a graph; see the class. Seconds are checked between moves."""
        search = _Search(self, problem, simulations, seconds, seed)
        return search.run(sweep_only=simulations is None and seconds is None)


class _Search:
    """One call of a `GuidedPlacer`."""

    def __init__(
        self,
        placer: GuidedPlacer,
        problem: PlacementProblem,
        simulations: int | None,
        seconds: float | None,
        seed: int,
    ) -> None:
        self.began = time.perf_counter()
        self.policy, self.env, self.problem = placer.policy, placer.env, problem
        self.limit, self.seconds = simulations, seconds
        self.seed, self.random = seed, torch.Generator().manual_seed(seed)
        self.used = 0
        self.history: list[tuple[int, float, float]] = []

    @property
    def left(self) -> float:
        """Simulations left; 0 when time is up."""
        if self.seconds is not None and time.perf_counter() - self.began >= self.seconds:
            return 0
        return np.inf if self.limit is None else self.limit - self.used

    def run(self, sweep_only: bool) -> PlacementResult:
        """Start, sweep, roll-outs."""
        instance = make_instance(self.problem)
        if self.problem.num_devices == 1 or self.left < 2:
            return HEURISTICS["single"](self.problem, simulations=self.limit, seed=self.seed)
        starts = cheap_starts(instance, self.limit, self.seed)
        self.used += starts.simulations
        best = starts.best
        self._log(min(best.makespan_us if best.fits else np.inf, starts.score[0] * self.problem.single_device_us))
        if self.left >= 1:
            batch = InstanceBatch.of([instance])
            state = self._reset(batch, starts.placement[:1])
            for _ in range(int(batch.num_groups[0])):
                if self.left < 1:
                    break
                state = self._move(batch, state, None)
            incumbent, score = state.best_placement, state.best[0]
            while not sweep_only and self.left >= 2:
                incumbent, score = self._rollouts(batch, incumbent, score)
            best = self._better(best, expand(instance.groups, incumbent[0, : batch.num_groups[0]]))
        return PlacementResult(
            placement=best.placement,
            makespan_us=best.makespan_us,
            fits=best.fits,
            simulations=self.used,
            seconds=time.perf_counter() - self.began,
            history=tuple(self.history),
        )

    def _rollouts(self, batch: InstanceBatch, incumbent: np.ndarray, score: float) -> tuple[np.ndarray, float]:
        episodes = int(min(ROLLOUT_EPISODES, self.left // 2))
        state = self._reset(batch, np.repeat(incumbent[:1], episodes, axis=0))
        for _ in range(ROLLOUT_MOVES):
            if self.left < episodes:
                break
            state = self._move(batch, state, ROLLOUT_TEMPERATURE)
        winner = int(state.best.argmin())
        if state.best[winner] < score:
            return state.best_placement[winner : winner + 1], state.best[winner]
        return incumbent, score

    def _reset(self, batch: InstanceBatch, placement: np.ndarray) -> EnvState:
        self.used += len(placement)
        return reset(batch, self.env, np.zeros(len(placement), np.int64), placement)

    def _move(self, batch: InstanceBatch, state: EnvState, temperature: float | None) -> EnvState:
        with torch.no_grad():
            logits, _ = self.policy(state.data)
        distribution = PairDistribution.from_logits(logits, state.data, temperature or 1.0)
        action = distribution.mode() if temperature is None else distribution.sample(self.random)
        self.used += len(action)
        state = step(batch, self.env, state, action.numpy())
        self._log(float(state.best.min()) * self.problem.single_device_us)
        return state

    def _log(self, score_us: float) -> None:
        """Note an improvement. Where memory is exceeded this is the penalised makespan, which only falls, too."""
        if not self.history or score_us < self.history[-1][2]:
            self.history.append((self.used, time.perf_counter() - self.began, score_us))

    def _better(self, best: PlacementResult, ops: np.ndarray) -> PlacementResult:
        schedule = simulate(self.problem, ops)
        if (not schedule.fits, schedule.makespan_us) >= (not best.fits, best.makespan_us):
            return best
        return PlacementResult(ops, schedule.makespan_us, schedule.fits, self.used, 0.0, tuple(self.history))


def guided_placer(checkpoint: Mapping[str, Any], policy: nn.Module) -> GuidedPlacer:
    """A placer from a checkpoint and a policy of its config, with the parameters that validated best."""
    policy.load_state_dict(checkpoint["best_parameters"])
    return GuidedPlacer(policy, EnvConfig(**checkpoint["config"]["env"]))
