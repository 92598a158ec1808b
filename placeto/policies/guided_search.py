"""Guided search: places one graph by construction rules, sweeps of a trained iterative policy, and annealing.

Construction rules build the first placements. Sweeps (`placeto.policies.sweeps`) try the moves that the policy scores
highest. V-cycles alternate sweeps with annealing of groups and of their parts.

Legend: G groups, D devices, S starts, C instances.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from placeto.environment.env_config import EnvConfig
from placeto.environment.instance import Instance, make_instance, new_instance
from placeto.heuristics.local_search.annealing import anneal_within, parts_of
from placeto.heuristics.local_search.part_of_cluster import on_best_part
from placeto.heuristics.local_search.starts import CHEAP, DEFAULT_SIMULATIONS, begin, round_best, round_to_groups
from placeto.heuristics.order_choice import order_chosen_again
from placeto.heuristics.rules import Rule
from placeto.policies.compiled import CompiledPolicy
from placeto.policies.joining import Coarsening
from placeto.policies.learned_placer import LearnedPlacer
from placeto.policies.sweeps import GuidedConfig, Sweeper
from placeto.problem.problem import PlacementProblem
from placeto.simulator.evaluator import Evaluator, PlacementResult
from placeto.simulator.observer import at_work
from placeto.simulator.threads import one_thread

SHARE = 0.5
"""Largest share of what is left of a budget that goes to one sweep, or to groups before their parts.

With 0.7 and with 0.45, makespans are equal within the noise."""
CYCLES = 3
"""Number of V-cycles. They divide what the sweeps before them leave of the budget evenly.

With two and with four V-cycles, makespans are equal within the noise."""


@dataclass(frozen=True, eq=False)
class Starts:
    """S placements of an instance's groups, made by cheap heuristics, the best one first."""

    placement: np.ndarray  # (S, G) int64
    score: np.ndarray  # (S,) float64, penalised makespan relative to the best single device


def cheap_starts(instance: Instance, rules: Sequence[Rule] = CHEAP) -> Starts:
    """Place an instance by each cheap heuristic, and return the different placements of groups, the best one first.

    Heuristics place single ops: a group is put on the device that has most of the group's work.
    """
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
    """A trained policy as a placer: the best constructive placement, then sweeps of the policy, then annealing.

    A budget of simulations and one of seconds are spent in the same steps. Each step gets a share of what is left.
    Without a budget there are `DEFAULT_SIMULATIONS`.

    The search begins with the constructive placers (see `begin`). If their best placement is on a part of the cluster,
    most of the budget is spent on this part (see `on_best_part`). Then come a sweep over groups and joined groups, a
    sweep over parts of groups, and V-cycles. A V-cycle anneals groups, which are made anew of parts, and then anneals
    their parts.

    With a budget of simulations, a pass comes before the first sweep. The pass is the policy's zero-shot answer: the
    two sweeps, which together take at most one simulation for each group. So if there are enough simulations, about 25
    and one for each group, the result is never worse than the best constructive placement, nor than the pass. With
    fewer simulations, or with a limit in seconds alone, there is no pass. With a budget of 0 simulations the pass is
    the result, and its simulations are not counted.
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
        """Place a graph within a budget, by constructive placers, sweeps and annealing; see the class."""
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
        """Return the policy's zero-shot answer, whose `simulations` count the constructive placers and the pass.

        `seconds` limits the constructive placers and the pass together; None = no limit.
        """
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
        """Try the constructive placers, and return whether a search can go on from their best placement.

        It can't if the cluster has one device, if the best score is 0 or inf, or if the budget is spent.
        """
        _, score = begin(evaluator, seed)
        return evaluator.problem.num_devices > 1 and 0 < score < math.inf and not evaluator.exhausted

    def _improve(self, evaluator: Evaluator, random: np.random.Generator) -> None:
        """Spend what is left of a budget: first on a pass, then on the search.

        There is a pass if simulations are limited and enough of them are left: one for each group. The search is a
        sweep over groups and joined groups, a sweep over parts of groups, and V-cycles. Each V-cycle joins parts that
        the best placement has on one device, until there are as many groups as at first. It anneals these groups, and
        then their parts. There is a sweep before each annealing but the first one.
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
        """Return two instances: with the evaluator's groups, and with the parts of these groups."""
        problem, groups = evaluator.problem, evaluator.groups
        return make_instance(problem, groups), make_instance(problem, parts_of(problem, groups))

    def _pass(self, instance: Instance, split: Instance, evaluator: Evaluator) -> None:
        """Sweep over groups, then over parts, from the evaluator's best placement of groups.

        Together the sweeps take at most one simulation for each group.
        """
        with evaluator.limited(evaluator.simulations + instance.groups.num_groups, None):
            with evaluator.limited_to(SHARE):
                self._sweep_groups(instance, evaluator)
            with evaluator.split_into(split.groups):
                self.sweeper.sweep(split, evaluator)

    def _sweep_groups(self, instance: Instance, evaluator: Evaluator) -> None:
        """Sweep over groups that are joined wherever they are, then over groups and groups joined on one device."""
        self.sweeper.sweep_rounded(instance, evaluator)
        self.sweeper.sweep(instance, evaluator)

    def _sweep_parts(self, split: Instance, evaluator: Evaluator) -> None:
        """Make the parts the evaluator's groups, and sweep over them with a share of what is left of the budget."""
        evaluator.regroup(split.groups)
        with evaluator.limited_to(SHARE):
            self.sweeper.sweep(split, evaluator)

    def _join(self, split: Instance, count: int, evaluator: Evaluator) -> None:
        """Join parts that the best placement has on one device to `count` groups, and go on with these groups.

        There are more groups where too few parts of a device exchange tensors (see `Coarsening.joined`).
        """
        coarsening = Coarsening(split.problem, split.groups)
        (joined,) = coarsening.joined(evaluator.best_groups[0], [count])
        evaluator.regroup(coarsening.groups_of(joined))


def guided_placer(checkpoint: Mapping[str, Any], policy: Any = None) -> GuidedPlacer:
    """Make a placer from a checkpoint, with the parameters that were best in validation.

    Args:
        checkpoint: as `placeto.training.checkpoint` or `placeto.policies.weights` loads it.
        policy: a `PlacetoPolicy` with the checkpoint's settings, into which the parameters are loaded, which checks
            their names and shapes. None = no torch network is made, and only the presence of the parameters is checked.

    Raises:
        RuntimeError: the parameters aren't those of `policy`.
        KeyError: without a policy: a parameter is missing.
    """
    config, parameters = checkpoint["config"], checkpoint["best_parameters"]
    if policy is None:
        compiled = CompiledPolicy(parameters, config["policy"]["rounds"], config["policy"]["change_weight"])
    else:
        policy.load_state_dict(parameters)
        compiled = CompiledPolicy.of(policy)
    return GuidedPlacer(compiled, EnvConfig(**config["env"]), search_settings(config))


def search_settings(config: Mapping[str, Any]) -> GuidedConfig:
    """Return the settings of the search from a checkpoint's config.

    Settings of earlier versions that `GuidedConfig` no longer has are left out.
    """
    known = {field.name for field in fields(GuidedConfig)}
    return GuidedConfig(**{name: value for name, value in config.get("search", {}).items() if name in known})
