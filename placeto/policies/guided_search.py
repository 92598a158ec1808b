"""Guided search: places one graph by construction rules, sweeps of a trained iterative policy, and annealing.

Construction rules build the first placements. Sweeps (`placeto.policies.sweeps`) try the moves that the policy scores
highest. V-cycles (`placeto.heuristics.local_search.multilevel`) alternate sweeps with annealing.

Legend: G groups, D devices, S starts, C instances.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any

import numpy as np

from placeto.environment.env_config import EnvConfig
from placeto.environment.instance import Instance
from placeto.heuristics.local_search.multilevel import SHARE, parts_of, v_cycles
from placeto.heuristics.local_search.starts import (
    CHEAP,
    DEFAULT_SIMULATIONS,
    begin,
    can_be_improved,
    follow,
    round_to_groups,
)
from placeto.heuristics.rules import Rule
from placeto.policies.compiled import CompiledPolicy
from placeto.policies.learned_placer import LearnedPlacer
from placeto.policies.sweeps import GuidedConfig, Scorer, Sweeper
from placeto.problem.problem import PlacementProblem
from placeto.simulator.evaluator import Evaluator, PlacementResult
from placeto.simulator.threads import one_thread


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
    """A trained policy as a placer: the best constructive placement, then V-cycles of sweeps and annealing.

    A budget of simulations and one of seconds are spent in the same steps. Each step gets a share of what is left.
    Without a budget there are `DEFAULT_SIMULATIONS`.

    The search begins with the constructive placers (see `begin`), so it is never worse than the best of them if the
    budget is enough for all: about 25 simulations, and more where memory is short. Then come V-cycles, in which a sweep
    of the policy comes before each annealing (see `v_cycles`). With a budget of 0 simulations the pass is the result,
    and its simulations are not counted: see `one_pass`.
    """

    def __init__(
        self,
        policy: Scorer,
        env: EnvConfig,
        search: GuidedConfig | None = None,
        start: Rule = begin,
        name: str = "placeto",
    ) -> None:
        self.name, self.start, self.policy, self.env = name, start, policy, env
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
        follow(partial(v_cycles, sweep=self.sweeper.sweep), evaluator, seed, self.start)
        return evaluator.result()

    def one_pass(self, problem: PlacementProblem, *, seconds: float | None = None, seed: int = 0) -> PlacementResult:
        """Return the policy's zero-shot answer: sweeps over groups, then over their parts, without annealing.

        The result's `simulations` count the constructive placers and the sweeps. Together the sweeps take at most one
        simulation for each group. `seconds` limits all together; None = no limit.
        """
        began = time.perf_counter()
        with one_thread():
            evaluator = Evaluator(problem, None, None, seconds, began)
            self.start(evaluator, seed)
            if can_be_improved(evaluator):
                groups = evaluator.groups
                with evaluator.limited(evaluator.simulations + groups.num_groups, None):
                    with evaluator.limited_to(SHARE):
                        self.sweeper.sweep(evaluator)
                    evaluator.regroup(parts_of(problem, groups))
                    self.sweeper.sweep(evaluator)
            return replace(evaluator.result(), placer=self.name)


def guided_placer(checkpoint: Mapping[str, Any], network: Any = None) -> GuidedPlacer:
    """Make a placer from a checkpoint, with the parameters that were best in validation.

    Args:
        checkpoint: as `placeto.training.checkpoint` or `placeto.policies.weights` loads it.
        network: the policy with these parameters; that of `placeto` isn't needed, since its parameters are compiled.

    Raises:
        KeyError: a parameter of `placeto` is missing.
    """
    config = checkpoint["config"]
    scorer: Scorer
    if checkpoint["placer"] == "placeto":
        settings = config["policy"]
        scorer = CompiledPolicy(checkpoint["best_parameters"], settings["rounds"], settings["change_weight"])
    else:
        from placeto.policies.pair_policy import TorchScorer  # imported here, because its module imports torch

        scorer = TorchScorer(network)
    return GuidedPlacer(scorer, EnvConfig(**config["env"]), search_settings(config), name=checkpoint["placer"])


def search_settings(config: Mapping[str, Any]) -> GuidedConfig:
    """Return the settings of the search from a checkpoint's config.

    Settings of earlier versions that `GuidedConfig` no longer has are left out.
    """
    known = {field.name for field in fields(GuidedConfig)}
    return GuidedConfig(**{name: value for name, value in config.get("search", {}).items() if name in known})
