"""How an iterative policy learns, from episodes that begin with placements of heuristics and of annealing.

In the supervised stage the policy learns to predict the exact effects of single moves, which are simulated in the
states of its episodes. Reinforcement, if there is any, then improves whole episodes. docs/method.md has the steps of an
iteration.

Legend: C training instances, K replicas, B episodes of an iteration, T moves, G groups, S starts.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import cast

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data

from placeto.environment.env_config import EnvConfig
from placeto.environment.instance import Instance, InstanceBatch, make_instance
from placeto.environment.mdp import reset
from placeto.heuristics.local_search.annealing import annealing
from placeto.heuristics.local_search.multilevel import parts_of
from placeto.heuristics.local_search.starts import round_to_groups
from placeto.heuristics.naive import try_single
from placeto.policies.guided_search import Starts, cheap_starts
from placeto.policies.pair_policy import PairDistribution, answers
from placeto.policies.placeto import PlacetoPolicy
from placeto.problem.grouping import Groups, expand, group_ops, join_groups
from placeto.problem.problem import PlacementProblem
from placeto.simulator.evaluator import Evaluator
from placeto.training.config import LearningConfig, TrainConfig
from placeto.training.learners.learner import (
    RANDOM,
    Run,
    TrainState,
    Validation,
    episode_makespans,
    prepare,
    seconds,
    set_learning_rate,
)
from placeto.training.learners.replay import Replay, labelled_states
from placeto.training.losses import normalise
from placeto.training.rollout import Labels, Rollout, Stopwatch, greedy_pass, random_pass, rollout
from placeto.training.updates import Scored, advantages, policy_update, supervised_update

GOLDEN = 0.6180339887498949  # multiples of this number, modulo 1, are spread evenly over 0..1
JOINED = 0.125, 0.25, 0.5  # groups are joined to one of these shares of their number
_ANNEALED = 8  # number of placements that annealing makes of each problem, for the starts of episodes
_SIMULATIONS = 20, 60, 150, 500  # each of them ends after one of these numbers of simulations, drawn at random
_AS_WELL = 0.5  # share of these placements in which parts, or joined groups, are annealed after the groups
_KICKED, _KICK = 0.3, 0.05  # share of annealed starts in which groups move at random, and share of these groups
_VISITED = 0.8  # largest share of the groups that are marked as visited at the start
_FRESH = 0.6  # share of annealed starts in which no group is marked, as in the sweeps of guided search


@dataclass(frozen=True, eq=False)
class Family:
    """Prepared problems: their instances, and the placements with which episodes start."""

    batch: InstanceBatch
    starts: tuple[Starts, ...]  # (C,) starts of each instance, the best one first
    heuristic: np.ndarray  # (C,) float64, relative makespan of the best cheap heuristic
    annealed: tuple[np.ndarray, ...]  # (C,) arrays (A, G) int64, placements that annealing has made; A may be 0

    @classmethod
    def of(cls, run: Run, held_out: bool = False) -> Family:
        """Prepare the training problems of a run, or with `held_out` its validation problems.

        The ops of each problem are grouped, and placed by the cheap heuristics; if the settings say so, also by
        annealing. Training problems whose groups are split into parts, or joined, are spread evenly among the others.
        In validation problems, groups are neither split nor joined, and makespans are never measured.
        """
        learning, problems, measure = run.config.learning, run.problems, run.measure
        if held_out:
            learning, problems, measure = replace(learning, parts=0.0, joined=0.0, annealed=0.0), run.validation, None
        count = itertools.count()

        def one(problem: PlacementProblem) -> tuple[Instance, Starts, float, np.ndarray]:
            number = next(count)
            instance = make_instance(problem, _groups(problem, learning, number))
            starts = cheap = cheap_starts(instance)
            if learning.starts == "single":
                starts = cheap_starts(instance, (try_single,))
            if learning.annealed and learning.supervised:
                return instance, starts, cheap.score[0], annealed_placements(instance, _ANNEALED, number)
            return instance, starts, cheap.score[0], np.zeros((0, instance.groups.num_groups), np.int64)

        instances, starts, heuristic, searched = zip(*prepare(problems, one, run.report), strict=True)
        return cls(InstanceBatch.of(instances, measure), starts, np.array(heuristic), searched)

    @property
    def best_starts(self) -> np.ndarray:
        """The best start of each instance: (C, G) int64, with zeros beyond the groups of the instance."""
        placement = np.zeros((len(self.starts), self.batch.max_groups), np.int64)
        for row, starts in zip(placement, self.starts, strict=True):
            row[: starts.placement.shape[1]] = starts.placement[0]
        return placement


class IterativeLearner:
    """Trains a policy that moves one node at a time; see `placeto.training.learners.learner.Learner`."""

    def __init__(self, run: Run) -> None:
        self.config: TrainConfig = run.config
        self.ranks, self.problems, self.validation = run.ranks, run.problems, run.validation
        self.family, self.held_out = Family.of(run), Family.of(run, held_out=True)

    def initial_state(self) -> TrainState:
        """Make a state with a fresh policy; the best placements met are the best starts."""
        learning, family = self.config.learning, self.family
        scores = [np.inf if family.batch.measure else starts.score[0] for starts in family.starts]
        instances = family.batch.instances
        elite = np.zeros((len(scores), max(instance.problem.num_ops for instance in instances)), np.int64)
        for row, instance, starts in zip(elite, instances, family.starts, strict=True):
            row[: instance.problem.num_ops] = expand(instance.groups, starts.placement[0])
        state = TrainState.fresh(self.config, elite, np.array(scores))
        if learning.replay and learning.supervised:
            batch = family.batch
            state.replay = Replay(learning.replay, batch.num_groups, batch.num_devices, learning.labels)
        return state

    def iterate(self, state: TrainState, done: float) -> dict[str, float]:
        """Run one iteration: this rank's episodes, loss, gradient steps. Returns the numbers to log, by tag."""
        config, family, learning, ranks = self.config, self.family, self.config.learning, self.ranks
        began, watch = time.perf_counter(), Stopwatch()
        supervised = done < learning.supervised
        replicas = learning.supervised_replicas if supervised else learning.replicas
        if supervised and learning.annealed and state.random.random() < learning.annealed:
            index, placement, visited = self._choose_annealed(state, replicas)
        else:
            index, placement = self._choose_starts(state, replicas, same=not supervised)
            visited = np.zeros(placement.shape, bool)
        watch.lap(None)
        env = replace(config.env, tolerance=None) if supervised else config.env  # all moves kept: more varied states
        mine = ranks.share(len(index))
        begin = reset(family.batch, env, index[mine], placement[mine], visited[mine])
        watch.lap("simulation")
        episodes = rollout(
            state.policy,
            family.batch,
            env,
            begin,
            learning.supervised_moves if supervised else learning.moves or family.batch.max_groups,
            state.torch_random,
            temperature=learning.temperature,
            labels=learning.labels if supervised else 0,
            watch=watch,
            ranks=ranks,
            everyone=index,
        )
        makespan = self._merge(state, episodes)
        watch.lap(None)
        lr = set_learning_rate(state.optimizer, learning_rate(learning, done))
        if supervised:
            states = self._fitted_states(state, episodes, env, watch)
            policy = cast(PlacetoPolicy, state.policy)  # `check_config` refuses others without `changes`
            numbers = supervised_update(policy, state.optimizer, states, learning, ranks)
        else:
            state.replay = None  # only the supervised stage needs the remembered states
            numbers = self._reinforce(state, episodes, makespan, index)
        watch.lap("network")
        return numbers | {
            **episode_makespans(makespan.numpy(), family.heuristic[index]),
            "train/learning_rate": lr,
            **seconds(watch, began),
        }

    def _merge(self, state: TrainState, episodes: Rollout) -> Tensor:
        """Remember the best placements that any rank met; return the makespans (T+1, B) of all ranks."""
        end, instances = episodes.end, self.family.batch.instances
        met = (end.index, end.best, end.best_placement, episodes.makespan.numpy(), episodes.simulations)
        indices, scores, placements, makespans, simulations = zip(*self.ranks.gather(met), strict=True)
        for index, score, row in zip(*map(np.concatenate, (indices, scores, placements)), strict=True):
            groups = instances[index].groups
            state.keep(index, score, expand(groups, row[: groups.num_groups]))
        state.simulations += sum(simulations)
        return torch.from_numpy(np.concatenate(makespans, 1))

    def _reinforce(self, state: TrainState, episodes: Rollout, makespan: Tensor, index: np.ndarray) -> dict[str, float]:
        """Update the policy by PPO, and return the numbers to log.

        Args:
            state: the state of the training.
            episodes: the episodes of this rank.
            makespan: (T+1, B) makespans of the episodes of all ranks.
            index: (B,) instances of the episodes of all ranks.
        """
        learning, ranks, policy = self.config.learning, self.ranks, state.policy
        worth = advantages(makespan, learning, index)
        mine = ranks.share(len(index))
        advantage = normalise(worth.advantage)[:, mine]
        weight = advantage.shape[1] / len(index)

        def score(minibatch: np.ndarray) -> Iterator[Scored]:
            for t in minibatch:
                data = episodes.data[t]
                distribution = PairDistribution.from_logits(answers(policy, data)[0], data, learning.temperature)
                log_prob = distribution.log_prob(episodes.action[t])
                yield Scored(log_prob, episodes.log_prob[t], advantage[t], distribution.entropy(), weight)

        numbers = policy_update(
            policy,
            state.optimizer,
            len(episodes.data),
            score,
            learning,
            state.random,
            entropy=learning.entropy,
            ranks=ranks,
        )
        return numbers | worth.numbers()

    def _fitted_states(
        self, state: TrainState, episodes: Rollout, env: EnvConfig, watch: Stopwatch
    ) -> Iterator[tuple[Data, Labels]]:
        """Yield the labelled states of each gradient step: an observation and its labels.

        Without a memory of states, these are the states of the iteration. With a memory, the states of the iteration
        are added to it, and those to fit are drawn from it.
        """
        learning, ranks, random, replay = self.config.learning, self.ranks, state.random, state.replay
        moves = len(episodes.data)
        if replay is None:
            for t in random.permutation(moves):
                yield episodes.data[t], episodes.labels[t].there()
            return
        own = labelled_states(episodes, self.family.batch.max_groups, learning.labels)
        of_ranks = ranks.gather(own)
        met = {name: np.concatenate([states[name] for states in of_ranks], 1) for name in own}
        replay.add(met)
        count: int = met["index"].shape[1]
        for _ in range(moves * learning.fits):
            watch.lap("network")
            rows = random.choice(len(replay), count, replace=False)
            rows = rows[ranks.share(len(rows))]
            data = reset(self.family.batch, env, *replay.placed(rows)).data
            watch.lap("simulation")
            yield data, replay.labels(rows, data.first)

    def validate(self, state: TrainState) -> Validation:
        """Validate by a greedy pass over each validation problem from its best start."""
        held_out = self.held_out
        index = np.arange(len(held_out.starts))
        end = greedy_pass(state.policy, held_out.batch, self.config.env, index, held_out.best_starts)
        groups = held_out.batch.instances[0].groups
        ops = expand(groups, end.best_placement[0, : groups.num_groups])
        scores = end.makespan, end.best, end.best / held_out.heuristic
        return Validation(*scores, ops, judged=end.best, moves=held_out.batch.num_groups)

    def validate_random(self) -> tuple[np.ndarray, np.ndarray]:
        """Return makespans (C,) at the end and best makespans (C,) of random passes from the best starts.

        They are means over `RANDOM` passes.
        """
        batch, starts, random = self.held_out.batch, self.held_out.best_starts, torch.Generator()
        random.manual_seed(self.config.seed)
        passes = [random_pass(batch, self.config.env, np.arange(len(starts)), starts, random) for _ in range(RANDOM)]
        return np.mean([end.makespan for end in passes], 0), np.mean([end.best for end in passes], 0)

    def _choose_starts(self, state: TrainState, replicas: int, same: bool) -> tuple[np.ndarray, np.ndarray]:
        """Draw the instances (B,) of an iteration's episodes and the placements (B, G) with which these start.

        Half of the starts are the best start of the instance (see `Family.starts`). A quarter are the best placement
        met so far, and a quarter are any start of the instance; in both, some groups are moved at random. With `same`,
        the replicas of an instance have the same start.
        """
        random, learning, family = state.random, self.config.learning, self.family
        count = min(learning.graphs, len(family.starts))
        chosen = random.choice(len(family.starts), count, replace=False)
        rows: list[np.ndarray] = []
        for instance in chosen:
            starts = family.starts[instance]
            for replica in range(replicas):
                if replica and same:
                    rows.append(rows[-1])
                    continue
                kind = random.random()
                if kind < 0.5:
                    rows.append(starts.placement[0])
                    continue
                other = starts.placement[random.integers(len(starts.placement))]
                groups, devices = family.batch.num_groups[instance], family.batch.num_devices[instance]
                first = family.batch.instances[instance].groups.first_op
                row = (state.elite[instance, first] if kind < 0.75 else other).copy()
                kicked = random.random(groups) < random.choice([0.02, 0.05, 0.15])
                row[kicked] = random.integers(devices, size=int(kicked.sum()))
                rows.append(row)
        placement = np.zeros((len(rows), family.batch.max_groups), np.int64)
        for b, row in enumerate(rows):
            placement[b, : len(row)] = row
        return np.repeat(chosen, replicas), placement

    def _choose_annealed(self, state: TrainState, replicas: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Draw instances (B,) and starts (B, G) as `_choose_starts` does, but from placements that annealing has made.

        Also return the groups marked as visited, (B, G) bool.
        """
        random, family = state.random, self.family
        count = min(self.config.learning.graphs, len(family.starts))
        index = np.repeat(random.choice(len(family.starts), count, replace=False), replicas)
        placement = np.zeros((len(index), family.batch.max_groups), np.int64)
        visited = np.zeros(placement.shape, bool)
        for b, instance in enumerate(index):
            groups, devices = family.batch.num_groups[instance], family.batch.num_devices[instance]
            placement[b, :groups] = random.choice(family.annealed[instance])
            if random.random() < _KICKED:
                kicked = np.flatnonzero(random.random(groups) < _KICK)
                placement[b, kicked] = random.integers(devices, size=len(kicked))
            share = _VISITED * random.random() if random.random() >= _FRESH else 0.0
            marked = random.choice(groups, int(share * groups), replace=False)
            visited[b, marked] = True
        return index, placement, visited


def _groups(problem: PlacementProblem, learning: LearningConfig, number: int) -> Groups:
    """Return the groups of a training problem: unchanged, split into parts, or joined, depending on its number."""
    groups = group_ops(problem)
    nth = (number * GOLDEN) % 1.0  # spread evenly, even where kinds of problems alternate with some period
    if nth < learning.parts:
        return parts_of(problem, groups)
    if nth < learning.parts + learning.joined:
        share = JOINED[number % len(JOINED)]
        return join_groups(problem, groups, max(1, round(share * groups.num_groups)))
    return groups


def learning_rate(learning: LearningConfig, done: float) -> float:
    """Return the learning rate at the finished share `done` of the training.

    It falls linearly: in the supervised stage to a tenth of `supervised_lr`, in reinforcement from `lr` to zero.
    """
    if done < learning.supervised:
        return learning.supervised_lr * (1.0 - 0.9 * done / learning.supervised)
    return learning.lr * (1.0 - (done - learning.supervised) / learning.reinforcement)


def annealed_placements(instance: Instance, count: int, seed: int) -> np.ndarray:
    """Make placements (count, G) by annealing from cheap heuristics, with different numbers of simulations.

    If the groups of the instance are parts, or joined groups, then the groups of `group_ops` are annealed first, as in
    guided search. In some of the placements, the instance's own groups are annealed after them.
    """
    problem, groups, random = instance.problem, group_ops(instance.problem), np.random.default_rng(seed)
    first = instance.groups.first_op
    starts, rows = cheap_starts(make_instance(problem)).placement, np.zeros((count, len(first)), np.int64)
    for row in rows:
        start = starts[random.integers(len(starts))]
        evaluator = Evaluator(problem, groups, int(random.choice(_SIMULATIONS)))
        evaluator.score(start)
        annealing(evaluator, random)
        if instance.groups.num_groups != groups.num_groups:
            placement = round_to_groups(problem, instance.groups, expand(groups, evaluator.best_groups[0]))
            more = int(random.choice(_SIMULATIONS)) if random.random() < _AS_WELL else 1
            evaluator = Evaluator(problem, instance.groups, more)
            evaluator.score(placement)
            annealing(evaluator, random)
        row[:] = evaluator.best_groups[0]
    return rows
