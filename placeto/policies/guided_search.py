"""Placing one graph with a trained iterative policy: cheap heuristics, greedy sweeps, multilevel annealing.

Legend: G groups, D devices, S starts, C instances.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numba
import numpy as np

from placeto.environment.columns import NODE
from placeto.environment.config import EnvConfig
from placeto.environment.instance import Instance, InstanceBatch, make_instance
from placeto.environment.observation import look
from placeto.heuristics.common import Rule
from placeto.heuristics.local_search.annealing import anneal_within, parts_of
from placeto.heuristics.local_search.starts import CHEAP, DEFAULT_SIMULATIONS, begin, round_best, round_to_groups
from placeto.policies.compiled import CompiledPolicy
from placeto.problem.grouping import join_groups
from placeto.problem.problem import PlacementProblem
from placeto.simulator.evaluator import Evaluator, PlacementResult
from placeto.simulator.threads import one_thread
from placeto.simulator.watch import at_work


@dataclass(frozen=True)
class GuidedConfig:
    """How a policy's answers and annealing take turns."""

    levels: tuple[float, ...] = (0.25, 1.0)
    """Shares of the groups to which they are joined for the sweeps of a pass, and of those after it."""
    timed_levels: tuple[float, ...] = (0.125, 0.25, 1.0)
    """The same under a clock, where a look of the policy takes as long as some of annealing's simulations."""
    fewest: int = 4
    """Groups of a level, at least."""
    pass_parts: int = 4
    """Into how many parts a group is split for the end of a pass, on the average."""
    pass_on_parts: float = 0.4
    """Share of a pass's simulations that go to them."""
    tries: int = 8
    """Placements tried between two looks of the policy, at most."""
    kept: int = 2
    """So many of them are kept, at most."""
    together: int = 4
    """Moves of parts that are tried together, at first: twice as many after these are kept, half if not."""
    most_together: int = 32
    """And never more."""
    on_sweeps: float = 0.7
    """Share of the simulations that go to sweeps of groups, at most."""
    seconds_on_sweeps: float = 0.5
    """Share of the time that goes to them, at most."""
    worth_parts: float = 6.0
    """Under a clock, simulations for each move of a group from which on splitting groups is worth while."""
    on_groups: float = 0.3
    """Share of what is then left that goes to annealing of groups."""
    on_parts: float = 0.3
    """Share of what is then left that goes to a sweep over the parts of groups."""


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
    """A trained policy as a placer: best constructive placement, greedy sweeps of the policy, annealing.

    Sweeps go from few joined groups to all, annealing follows; then the groups are split into parts, of which there is
    another sweep, and which are annealed in turn. Without a budget it takes `DEFAULT_SIMULATIONS`.

    It begins with the constructive placers (see `begin`) and one pass, which is the policy's zero-shot answer: a
    sweep over joined groups, one over all and one over the parts of groups, together with a simulation a group. So
    it is never worse than the best of these placers, nor than its own pass, where there are simulations for them: some
    25 and one a group. Less leaves the pass out, and so do limits in seconds. With a budget of 0 simulations the pass
    is the answer, and what it simulates is not counted.
    """

    def __init__(self, policy: CompiledPolicy, env: EnvConfig, search: GuidedConfig | None = None) -> None:
        self.policy = policy
        self.env = env
        self.search = search or GuidedConfig()

    def __call__(
        self,
        problem: PlacementProblem,
        *,
        simulations: int | None = None,
        seconds: float | None = None,
        seed: int = 0,
    ) -> PlacementResult:
        """Place a graph within a budget of simulations or seconds; see the class."""
        if simulations == 0:
            result = self.one_pass(problem, seconds=seconds, seed=seed)
            return replace(result, simulations=0, history=((0, result.seconds, result.makespan_us),))
        if simulations is None and seconds is None:
            simulations = DEFAULT_SIMULATIONS
        began = time.perf_counter()
        with one_thread():
            evaluator = Evaluator(problem, None, simulations, seconds, began)
            if self._starts(evaluator, seed):
                instance = make_instance(problem, evaluator.groups)
                if seconds is None and evaluator.remaining >= instance.groups.num_groups:
                    self._pass(instance, evaluator)
                self._search(instance, evaluator, np.random.default_rng(seed))
            return replace(evaluator.result(), placer="placeto")

    def one_pass(self, problem: PlacementProblem, *, seconds: float | None = None, seed: int = 0) -> PlacementResult:
        """The policy's zero-shot answer, with what its simulations were counted as."""
        began = time.perf_counter()
        with one_thread():
            evaluator = Evaluator(problem, None, None, seconds, began)
            if self._starts(evaluator, seed):
                self._pass(make_instance(problem, evaluator.groups), evaluator)
            return replace(evaluator.result(), placer="placeto")

    def _starts(self, evaluator: Evaluator, seed: int) -> bool:
        """Try the constructive placers; whether anything is left to do."""
        _, score = begin(evaluator, seed)
        return evaluator.problem.num_devices > 1 and 0 < score < math.inf and not evaluator.exhausted

    def _search(self, instance: Instance, evaluator: Evaluator, random: np.random.Generator) -> None:
        """Spend what is left of a budget: first on joined groups and groups, then on the parts of groups."""
        problem, own, timed = instance.problem, self.search, evaluator.seconds_limit is not None
        round_best(evaluator)
        with evaluator.limited_to(own.seconds_on_sweeps if timed else own.on_sweeps):
            for share in own.timed_levels if timed else own.levels:
                self._sweep(instance, share, evaluator, evaluator.best_groups[0])
        moves = instance.groups.num_groups * (problem.num_devices - 1)
        short = evaluator.exhausted or (timed and evaluator.expected < own.worth_parts * moves)
        parts = instance.groups if short else parts_of(problem, instance.groups)
        if parts.num_groups > instance.groups.num_groups:
            at_work("search")
            with evaluator.limited_to(own.on_groups):
                anneal_within(evaluator, random)
            evaluator.regroup(parts)
            with evaluator.limited_to(own.on_parts):
                self._sweep(make_instance(problem, parts), 1.0, evaluator, evaluator.best_groups[0], own.together)
        at_work("search of parts" if parts.num_groups > instance.groups.num_groups else "search")
        anneal_within(evaluator, random)

    def _pass(self, instance: Instance, evaluator: Evaluator) -> None:
        """Sweep with as many simulations as there are groups, from the best placement of groups met."""
        problem, groups, own = instance.problem, instance.groups, self.search
        parts = parts_of(problem, groups, own.pass_parts)
        split = parts.num_groups > groups.num_groups
        with evaluator.limited(evaluator.simulations + groups.num_groups, None):
            with evaluator.limited_to(1.0 - own.pass_on_parts if split else 1.0):
                for share in own.levels if groups.num_groups > own.fewest else (1.0,):
                    self._sweep(instance, share, evaluator, evaluator.best_groups[0])
            if split:
                with evaluator.split_into(parts):
                    self._sweep(make_instance(problem, parts), 1.0, evaluator, evaluator.best_groups[0], own.together)

    def _sweep(
        self, instance: Instance, share: float, evaluator: Evaluator, start: np.ndarray, together: int = 1
    ) -> None:
        """Offer the evaluator what the policy's most likely moves from `start` lead to, each group moved once.

        `start` is the best placement of groups that the evaluator has met. Below a `share` of 1 groups are joined, as
        long as there are more than this share of them. Between two looks of the policy its most likely moves are
        tried in turn until two are kept, so many `together`: more after some were kept, fewer after they weren't.
        Under a clock all cores try at once, and the best of what they tried is kept.
        What it observes was simulated before and counts once.
        """
        problem, own = instance.problem, self.search
        at_work("policy on parts" if together > 1 else "policy")
        of = np.arange(len(start))  # (G,) in which joined group each group is
        if share < 1.0:
            joined = join_groups(problem, instance.groups, max(own.fewest, round(share * len(start))))
            start = round_to_groups(problem, joined, start[instance.groups.group])
            of = joined.group[instance.groups.first_op]
            instance = make_instance(problem, joined)
        batch = InstanceBatch.of([instance])
        here, visited = start, np.zeros(len(start), bool)
        best = evaluator.score(here[of]) if share < 1.0 else evaluator.best_groups[1]
        most = own.most_together if together > 1 else 1
        abreast = numba.get_num_threads() if evaluator.seconds_limit is not None else 1
        while not visited.all() and not evaluator.exhausted:
            moves = self._likeliest(batch, here, visited, max(own.tries, together))
            if not len(moves):  # the policy's numbers overflow: it has no opinion, and won't get one
                break
            stay = here[moves[:, 0]] == moves[:, 1]
            visited[moves[stay, 0]] = True
            moves, kept, tries = moves[~stay], 0, 0
            while len(moves) and kept < own.kept and tries < own.tries and not evaluator.exhausted:
                sets = [moves[first : first + together] for first in range(0, len(moves), together)][:abreast]
                rows = np.repeat(here[None], len(sets), 0)
                for row, chosen in zip(rows, sets, strict=True):
                    row[chosen[:, 0]] = chosen[:, 1]
                scores = evaluator.score_batch(rows[:, of])
                tries += len(sets)
                best = min(best, float(scores.min()))
                good = scores <= (np.inf if self.env.tolerance is None else best * (1.0 + self.env.tolerance))
                if good.any():
                    first = int(scores.argmin())
                    here, kept, together = rows[first], kept + 1, min(2 * together, most)
                    visited[sets[first][:, 0]] = True
                else:
                    together = max(1, len(sets[0]) // 2)
                for chosen, well in zip(sets, good, strict=True):
                    if len(chosen) == 1 and not well:
                        visited[chosen[:, 0]] = True
                moves = moves[~visited[moves[:, 0]]]

    def _likeliest(self, batch: InstanceBatch, here: np.ndarray, visited: np.ndarray, count: int) -> np.ndarray:
        """(M, 2) groups and devices: the moves that the policy would make next, one a group, the likeliest first."""
        seen, step = look(batch, here, visited), visited.sum()
        legal = seen.offered
        if self.env.order == "topological":  # the traversal's node, which may also stay
            legal &= (seen.traversal == step)[:, None]
            seen.node[:, NODE.is_current] = seen.traversal == step
        else:
            legal[np.arange(len(here)), here] = False
        logits = self.policy(seen.node, seen.pair, seen.arcs, seen.edge, seen.current, legal)
        if not np.isfinite(logits).all():
            return np.empty((0, 2), np.int64)
        odds = np.where(legal, logits, -np.inf)
        device, most = odds.argmax(1), odds.max(1)
        order = np.argsort(-most, kind="stable")[: min(count, np.isfinite(most).sum())]
        return np.stack([order, device[order]], 1)


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
    return GuidedPlacer(compiled, EnvConfig(**config["env"]), GuidedConfig(**config.get("search", {})))
