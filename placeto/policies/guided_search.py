"""Guided search: places one graph with a trained iterative policy, by rules, sweeps of the policy, and annealing.

Rules build the first placements. Sweeps (`placeto.policies.sweeps`) try the moves that the policy scores highest.
V-cycles alternate sweeps with annealing of groups and of their parts.

Legend: G groups, D devices, S starts, C instances.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from placeto.environment.config import EnvConfig
from placeto.environment.instance import Instance, make_instance, new_instance
from placeto.heuristics.common import Rule
from placeto.heuristics.local_search.annealing import anneal_within, parts_of
from placeto.heuristics.local_search.part_of_cluster import on_best_part
from placeto.heuristics.local_search.starts import CHEAP, DEFAULT_SIMULATIONS, begin, round_best, round_to_groups
from placeto.heuristics.plans import order_chosen_again
from placeto.policies.coarsening import Coarsening
from placeto.policies.compiled import CompiledPolicy
from placeto.policies.placer import LearnedPlacer
from placeto.policies.sweeps import GuidedConfig, Sweeper
from placeto.problem.problem import PlacementProblem
from placeto.simulator.evaluator import Evaluator, PlacementResult
from placeto.simulator.observer import at_work
from placeto.simulator.threads import one_thread

SHARE = 0.5
"""Of what is left of a budget for a sweep, and for groups before their parts, at most: .7 and .45 are level."""
CYCLES = 3
"""V-cycles, between which what is then left is divided evenly: two and four are level."""


@dataclass(frozen=True, eq=False)
class Starts:
    """Placements of an instance by cheap heuristics, ops in groups, best first."""

    placement: np.ndarray  # (S, G) int64
    score: np.ndarray  # (S,) penalised makespan relative to the best single device


def cheap_starts(instance: Instance, rules: Sequence[Rule] = CHEAP) -> Starts:
    """Place by each cheap heuristic; ops of a group follow the device that has most of the group's work."""
    problem, groups = instance.problem, instance.groups
    rows = []
    for rule in rules:
        evaluator = Evaluator(problem, groups)
        rule(evaluator, 0)
        if evaluator.best is not None:
            rows.append(round_to_groups(problem, groups, evaluator.best))
    placement = np.unique(np.array(rows, np.int64), axis=0)
    score = Evaluator(problem, groups).score_batch(placement) / problem.single_device_us
    order = np.argsort(score, kind="stable")
    return Starts(placement[order], score[order])


class GuidedPlacer(LearnedPlacer):
    """A trained policy as a placer: best constructive placement, greedy sweeps of the policy, annealing.

    A budget of simulations and one of seconds are spent by the same plan, in shares of what is left; without either it
    takes `DEFAULT_SIMULATIONS`. It begins with the constructive placers (see `begin`), and where the best of them is on
    a part of the cluster it stays there for most of its budget (see `on_best_part`). Then come a sweep over groups,
    joined or not, one over parts of groups, and V-cycles: annealing of groups, made anew of parts, and of their parts.

    With a budget of simulations it makes one pass before, which is the policy's zero-shot answer: the two sweeps,
    together with a simulation a group at most. So it is never worse than the best of these placers, nor than its own
    pass, where there are simulations for them: some 25 and one a group. Less leaves the pass out, and so do limits in
    seconds alone. With a budget of 0 simulations the pass is the answer, and what it simulates is not counted.
    """

    name = "placeto"

    def __init__(self, policy: CompiledPolicy, env: EnvConfig, search: GuidedConfig | None = None) -> None:
        self.policy = policy
        self.env = env
        self.search = search or GuidedConfig()
        self.sweeper = Sweeper(policy, env, self.search)

    def place(
        self, problem: PlacementProblem, simulations: int | None, seconds: float | None, seed: int, began: float
    ) -> PlacementResult:
        """Starts, sweeps and annealing within a budget; see the class."""
        if simulations == 0:
            result = self.one_pass(problem, seconds=seconds, seed=seed)
            return replace(result, simulations=0, history=((0, result.seconds, result.makespan_us),))
        if simulations is None and seconds is None:
            simulations = DEFAULT_SIMULATIONS
        evaluator = Evaluator(problem, None, simulations, seconds, began)
        if self._starts(evaluator, seed):
            random = np.random.default_rng(seed)
            with order_chosen_again(evaluator):
                with on_best_part(evaluator) as inner:
                    if inner is not None:
                        round_best(inner)
                    self._improve(inner or evaluator, random)
                if inner is not None:
                    round_best(evaluator)
                    anneal_within(evaluator, random)
        return evaluator.result()

    def one_pass(self, problem: PlacementProblem, *, seconds: float | None = None, seed: int = 0) -> PlacementResult:
        """The policy's zero-shot answer, with what its simulations were counted as."""
        began = time.perf_counter()
        with one_thread():
            evaluator = Evaluator(problem, None, None, seconds, began)
            if self._starts(evaluator, seed):
                with on_best_part(evaluator) as inner:
                    if inner is not None:
                        round_best(inner)
                    own = inner or evaluator
                    self._pass(*self._instances(own), own)
            return replace(evaluator.result(), placer="placeto")

    def _starts(self, evaluator: Evaluator, seed: int) -> bool:
        """Try the constructive placers; whether anything is left to do."""
        _, score = begin(evaluator, seed)
        return evaluator.problem.num_devices > 1 and 0 < score < math.inf and not evaluator.exhausted

    def _improve(self, evaluator: Evaluator, random: np.random.Generator) -> None:
        """Spend what is left of a budget: a pass, where simulations are counted and there are enough, and the search.

        The search is a sweep over groups, joined or not, one over their parts, and V-cycles. In a cycle there are as
        many groups as at first, made of parts that the best placement has on one device; they are annealed, and after
        them their parts. A sweep goes before each annealing but the first.
        """
        problem, groups = evaluator.problem, evaluator.groups
        instance, split = self._instances(evaluator)
        if evaluator.limit is not None and evaluator.remaining >= groups.num_groups:
            self._pass(instance, split, evaluator)
            round_best(evaluator)
        with evaluator.limited_to(SHARE):
            self._sweep_groups(instance, evaluator)
        self._sweep_parts(split, evaluator)
        for cycle in range(CYCLES):
            if evaluator.exhausted:
                return
            with evaluator.limited_to(1.0 / (CYCLES - cycle)):
                with evaluator.limited_to(SHARE):
                    self._join(split, groups.num_groups, evaluator)
                    if cycle > 0:
                        with evaluator.limited_to(SHARE):
                            self.sweeper.sweep(new_instance(problem, evaluator.groups), evaluator)
                    at_work("search")
                    anneal_within(evaluator, random)
                self._sweep_parts(split, evaluator)
                at_work("search of parts")
                anneal_within(evaluator, random)

    def _instances(self, evaluator: Evaluator) -> tuple[Instance, Instance]:
        """The evaluator's groups, and the parts of them."""
        problem, groups = evaluator.problem, evaluator.groups
        return make_instance(problem, groups), make_instance(problem, parts_of(problem, groups))

    def _pass(self, instance: Instance, split: Instance, evaluator: Evaluator) -> None:
        """Both sweeps, from the best placement of groups met, with as many simulations as there are groups at most."""
        with evaluator.limited(evaluator.simulations + instance.groups.num_groups, None):
            with evaluator.limited_to(SHARE):
                self._sweep_groups(instance, evaluator)
            with evaluator.split_into(split.groups):
                self.sweeper.sweep(split, evaluator)

    def _sweep_groups(self, instance: Instance, evaluator: Evaluator) -> None:
        """Sweep over groups joined wherever they are, then over groups, joined or not."""
        self.sweeper.sweep_rounded(instance, evaluator)
        self.sweeper.sweep(instance, evaluator)

    def _sweep_parts(self, split: Instance, evaluator: Evaluator) -> None:
        """Go on with parts, and sweep over them with a share of what is left."""
        evaluator.regroup(split.groups)
        with evaluator.limited_to(SHARE):
            self.sweeper.sweep(split, evaluator)

    def _join(self, split: Instance, count: int, evaluator: Evaluator) -> None:
        """Go on with parts joined to so many groups, where the best placement allows it."""
        coarsening = Coarsening(split.problem, split.groups)
        (joined,) = coarsening.joined(evaluator.best_groups[0], [count])
        evaluator.regroup(coarsening.groups_of(joined))


def guided_placer(checkpoint: Mapping[str, Any], policy: Any = None) -> GuidedPlacer:
    """A placer from a checkpoint, with the parameters that validated best.

    Args:
        checkpoint: as `placeto.training.checkpoint` or `placeto.policies.weights` loads it.
        policy: of its config, into which the parameters are loaded first: others than the policy's are refused.
    """
    config, parameters = checkpoint["config"], checkpoint["best_parameters"]
    if policy is None:
        compiled = CompiledPolicy(parameters, config["policy"]["rounds"], config["policy"]["change_weight"])
    else:
        policy.load_state_dict(parameters)
        compiled = CompiledPolicy.of(policy)
    return GuidedPlacer(compiled, EnvConfig(**config["env"]), search_settings(config))


def search_settings(config: Mapping[str, Any]) -> GuidedConfig:
    """The settings of the search in a checkpoint's config; those that no search has any more are forgotten."""
    known = {field.name for field in fields(GuidedConfig)}
    return GuidedConfig(**{name: value for name, value in config.get("search", {}).items() if name in known})
