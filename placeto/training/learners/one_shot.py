"""How a one-shot policy learns: each round draws K placements of B graphs, and learns from them by REINFORCE or PPO.

A round is an iteration. In the first rounds, the policy may learn to repeat placements that annealing found. Rewards
are in `placeto.environment.rewards`, the published recipes in `placeto.training.recipes`.

Legend: C training problems, B problems of a round, K samples, A decisions of a sample, N ops, U units, W ops of the
largest problem.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from placeto.environment.instance import Measure
from placeto.environment.rewards import find_placement_reward
from placeto.errors import TrainingError
from placeto.heuristics.local_search.annealing import annealing
from placeto.heuristics.local_search.starts import best_cheap
from placeto.policies.one_shot.inputs import OneShotInput, make_input
from placeto.policies.one_shot.one_shot_policy import OneShotPolicy, Sample
from placeto.problem.grouping import group_ops
from placeto.problem.problem import PlacementProblem
from placeto.simulator.evaluator import Evaluator
from placeto.simulator.memory import penalised
from placeto.simulator.schedule import simulate_batch
from placeto.training.config import OneShotLearningConfig, OneShotTrainConfig
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
from placeto.training.losses import Advantages, normalise
from placeto.training.ranks import ALONE, Ranks
from placeto.training.rollout import Stopwatch
from placeto.training.updates import Scored, policy_update

Lesson = tuple[list[Sample], Tensor, dict[str, float]]
"""What an iteration learns from: samples of B problems, their advantages (B, K), and numbers to log, by tag."""


@dataclass(frozen=True, eq=False)
class Family:
    """C prepared problems: the policy's inputs, and the makespan of the constructive placers."""

    inputs: tuple[OneShotInput, ...]  # (C,) on the torch device of the policy
    units: tuple[np.ndarray, ...]  # (C,) arrays (N,) int64, unit of each op
    problems: tuple[PlacementProblem, ...]  # (C,)
    single_us: np.ndarray  # (C,) float64, best single-device makespan in microseconds
    heuristic: np.ndarray  # (C,) float64, relative makespan of the best constructive placement
    found: np.ndarray  # (C, W) int64, placements that annealing found; zeros if it wasn't asked for
    found_score: np.ndarray  # (C,) float64, their relative makespans, or inf
    measure: Measure | None = None  # if given, makespans are measured

    @classmethod
    def of(cls, run: Run, problems: Mapping[str, PlacementProblem], searched: int = 0) -> Family:
        """Prepare each problem: make the policy's input, and place the problem by the constructive placers.

        Then annealing moves groups, with `searched` simulations, and what it finds is rounded to units.
        """

        def one(problem: PlacementProblem) -> tuple[OneShotInput, float, np.ndarray, float]:
            heuristic_us, found = known_placements(problem, run.config.seed, searched)
            described, one_us = make_input(problem, run.config.policy.units), problem.single_device_us
            unit = described.unit.numpy()
            first = np.unique(unit, return_index=True)[1]  # the first op of each unit: its device is the unit's
            found = found[first][unit]
            score = Evaluator(problem).score_ops(found) if searched else np.inf
            return described, heuristic_us / one_us, found, score / one_us

        inputs, heuristic, found, score = zip(*prepare(problems, one, run.report), strict=True)
        most = max(problem.num_ops for problem in problems.values())
        return cls(
            inputs=tuple(graph.to(run.config.device) for graph in inputs),
            units=tuple(graph.unit.numpy() for graph in inputs),
            problems=tuple(problems.values()),
            single_us=np.array([problem.single_device_us for problem in problems.values()]),
            heuristic=np.array(heuristic),
            found=np.stack([np.pad(row, (0, most - len(row))) for row in found]),
            found_score=np.array(score),
        )

    def expand(self, index: int, placement: Tensor) -> np.ndarray:
        """Turn placements (K, U) of a problem's units into placements (K, W) int64 of its ops, padded with zeros."""
        ops = placement.cpu().numpy()[:, self.units[index]]
        return np.pad(ops, ((0, 0), (0, self.found.shape[1] - ops.shape[1])))

    def score(self, index: np.ndarray, placements: np.ndarray) -> np.ndarray:
        """Simulate placements (rows, W) of the problems `index` (rows,), or measure their makespans.

        Returns (rows, 2) float64: the penalised makespan relative to the best single device, and 1 if the placement
        fits into memory, else 0.
        """
        makespan_us, overflow = np.empty(len(index)), np.empty(len(index))
        for number in np.unique(index).tolist():
            rows, problem = np.flatnonzero(index == number), self.problems[number]
            ops = placements[rows, : problem.num_ops]
            makespan_us[rows], overflow[rows] = simulate_batch(problem, ops)
            if self.measure is not None:
                makespan_us[rows] = [self.measure(number, row) for row in ops]
        return np.stack([penalised(makespan_us, overflow) / self.single_us[index], overflow <= 0.0], 1)


def known_placements(problem: PlacementProblem, seed: int, searched: int) -> tuple[float, np.ndarray]:
    """Return the makespan of the best constructive placement in us, and what annealing of groups found from there.

    The latter are the devices (N,) of ops, the best of `searched` simulations.
    """
    groups = group_ops(problem)
    cheap, search = Evaluator(problem, groups), Evaluator(problem, groups, simulations=searched)
    start, _ = best_cheap(cheap)
    search.score(start)
    annealing(search, np.random.default_rng(seed))
    return cheap.best_score, search.best_groups[0][groups.group]


class OneShotLearner:
    """Trains a policy that places whole graphs; see `placeto.training.learners.learner.Learner`."""

    def __init__(self, run: Run) -> None:
        self.config: OneShotTrainConfig = run.config
        self.ranks, self.problems, self.validation = run.ranks, run.problems, run.validation
        learning = self.config.learning
        by_simulations = self.config.iterations is None and self.config.simulations is not None
        self.imitation = 0.0 if by_simulations else learning.imitation  # without simulations that would never end
        searched = learning.searched if self.imitation and not run.resumed else 0  # what was found is in a checkpoint
        self.family = Family.of(run, run.problems, searched)
        same = run.validation is run.problems  # prepared once: preparing a graph of 50,000 ops takes seconds
        self.held_out = self.family if same else Family.of(run, run.validation)
        self.family = replace(self.family, measure=run.measure)

    def initial_state(self) -> TrainState:
        """Make a state with a fresh policy, in which no placement was met but those that annealing found.

        Raises:
            PlacerError: the cluster of a problem has more devices than the policy was made for.
            TrainingError: the policy is to imitate, and decides about more than the devices of units.
        """
        config = self.config
        state = TrainState.fresh(config, self.family.found.copy(), self.family.found_score.copy(), config.device)
        if self.imitation and len(_policy(state).noise_shapes(self.family.inputs[0])) > 1:
            raise TrainingError(
                f"learning.imitation must be 0 for {config.placer}, which decides about more than devices of units"
            )
        for graph in (*self.family.inputs, *self.held_out.inputs):
            _policy(state).check(graph)
        return state

    def iterate(self, state: TrainState, done: float) -> dict[str, float]:
        """Run one round: draw samples, simulate them, make gradient steps. Returns the numbers to log, by tag."""
        family, learning, policy, ranks = self.family, self.config.learning, _policy(state), self.ranks
        began, watch = time.perf_counter(), Stopwatch()
        count = min(learning.graphs, len(family.inputs))
        chosen = state.random.choice(len(family.inputs), count, replace=False)
        imitating = done < self.imitation
        learn = self._imitate if imitating else self._explore
        samples, advantage, met = learn(state, chosen, watch)
        left = 1.0 - done if learning.falling else 1.0
        lr = set_learning_rate(state.optimizer, learning.lr * left)
        numbers = policy_update(
            policy,
            state.optimizer,
            count,
            scoring(policy, [family.inputs[i] for i in chosen], samples, advantage, ranks),
            learning,
            state.random,
            entropy=0.0 if imitating else learning.entropy * left,
            ranks=ranks,
        )
        watch.lap("network")
        return {**numbers, **met, "train/learning_rate": lr, **seconds(watch, began)}

    def _explore(self, state: TrainState, chosen: np.ndarray, watch: Stopwatch) -> Lesson:
        """Draw and simulate samples of the problems `chosen` (B,), and remember the best."""
        learning = self.config.learning
        samples, scores = self._sample(state, chosen, watch)
        relative, fits = scores[..., 0], scores[..., 1] > 0.0
        for index, sample, makespan in zip(chosen, samples, relative, strict=True):
            best = int(makespan.argmin())
            state.keep(index, makespan[best], sample.placement[best].cpu().numpy()[self.family.units[index]])
        state.simulations += relative.size
        counts = fits | (learning.failures is None or state.iteration < learning.failures)
        worth = advantages(relative, fits, counts, learning, chosen.tolist(), state.history)
        advantage = worth.advantage.to(self.config.device)
        if learning.normalise:
            advantage = torch.stack(list(map(normalise, advantage))) if learning.by_graph else normalise(advantage)
        return samples, advantage, worth.numbers() | episode_makespans(relative.T[None], self.family.heuristic[chosen])

    def _imitate(self, state: TrainState, chosen: np.ndarray, watch: Stopwatch) -> Lesson:
        """Take the best placement met of each of the problems `chosen` (B,) as its only sample, of the advantage 1."""
        family, samples = self.family, []
        for index in chosen:
            first = np.unique(family.units[index], return_index=True)[1]  # the first op of each unit
            action = torch.from_numpy(state.elite[index, first])[None].to(self.config.device)
            with torch.no_grad():
                log_prob, _ = _policy(state).score(family.inputs[index], action)
            samples.append(Sample(action, log_prob, action))
        return samples, torch.ones(len(chosen), 1, device=self.config.device), {}

    def validate(self, state: TrainState) -> Validation:
        """Validate by the most likely placement of each validation problem."""
        held_out, policy = self.held_out, _policy(state)
        samples = policy.decide(held_out.inputs, [policy.noise(graph, 1, None) for graph in held_out.inputs])
        placements = np.concatenate([held_out.expand(i, sample.placement) for i, sample in enumerate(samples)])
        relative = held_out.score(np.arange(len(placements)), placements)[:, 0]
        first = held_out.problems[0].num_ops
        scores = relative, relative, relative / held_out.heuristic
        return Validation(*scores, placements[0, :first], judged=relative, moves=np.ones(len(relative), np.int64))

    def validate_random(self) -> tuple[np.ndarray, np.ndarray]:
        """Return makespans (C,) of random placements of the validation problems, twice: as `end` and as `best_met`.

        They are means over `RANDOM` placements.
        """
        held_out, random = self.held_out, torch.Generator().manual_seed(self.config.seed)
        drawn = [
            held_out.expand(i, torch.randint(graph.num_devices, (RANDOM, graph.num_units), generator=random))
            for i, graph in enumerate(held_out.inputs)
        ]
        relative = held_out.score(np.repeat(np.arange(len(drawn)), RANDOM), np.concatenate(drawn))
        mean = relative.reshape(-1, RANDOM).mean(1)
        return mean, mean

    def _sample(self, state: TrainState, chosen: np.ndarray, watch: Stopwatch) -> tuple[list[Sample], np.ndarray]:
        """Draw K samples of each of the problems `chosen` (B,); return these and their scores (B, K, 2).

        Each rank makes its share of the samples and receives the others. It draws the random numbers of all ranks, and
        uses those of its share.
        """
        family, policy, ranks, random = self.family, _policy(state), self.ranks, state.torch_random
        count = self.config.learning.samples
        share = dict(ranks.share_of_blocks(len(chosen), count))
        noise = [policy.noise(family.inputs[problem], count, random) for problem in chosen]
        parts = policy.decide(
            [family.inputs[chosen[b]] for b in share],
            [tuple(draw[rows] for draw in noise[b]) for b, rows in share.items()],
        )
        placements = [family.expand(chosen[b], part.placement) for b, part in zip(share, parts, strict=True)]
        watch.lap("network")
        index = np.repeat(chosen[list(share)], [len(part.action) for part in parts])
        score = family.score(index, np.concatenate(placements))
        watch.lap("simulation")
        if ranks.size > 1:
            parts, score = self._exchange(len(chosen), list(share), parts, score)
        watch.lap(None)
        return parts, score.reshape(len(chosen), count, 2)

    def _exchange(
        self, count: int, blocks: Sequence[int], parts: Sequence[Sample], score: np.ndarray
    ) -> tuple[list[Sample], np.ndarray]:
        """Gather the samples of all ranks: return those of each of B = `count` problems, and the scores (B * K, 2).

        Args:
            count: B.
            blocks: numbers, in 0..B-1, of the problems of which this rank has samples.
            parts: this rank's samples of each of these problems.
            score: (samples of this rank, 2), their scores.
        """
        sent = [[x.cpu() for x in (part.action, part.log_prob, part.placement)] for part in parts]
        received = self.ranks.gather((list(zip(blocks, sent, strict=True)), score))
        device = self.config.device
        samples = []
        for b in range(count):
            fields = zip(*(part for of_rank, _ in received for block, part in of_rank if block == b), strict=True)
            samples.append(Sample(*(torch.cat(pieces).to(device) for pieces in fields)))
        return samples, np.concatenate([scores for _, scores in received])


def _policy(state: TrainState) -> OneShotPolicy:
    assert isinstance(state.policy, OneShotPolicy)
    return state.policy


def advantages(
    relative: np.ndarray,
    fits: np.ndarray,
    counts: np.ndarray,
    config: OneShotLearningConfig,
    problems: Sequence[int],
    history: dict[int, Tensor],
) -> Advantages:
    """Compute rewards and advantages, (B, K) float32, and the reward baseline, (B, 1) float32, of a round's samples.

    With the "quantile" baseline, samples below the quantile have an advantage of 0. This is the risk-seeking policy
    gradient of Petersen et al. 2021 (arXiv 1912.04871), which improves the best placements, not the mean.

    Args:
        relative: (B, K) makespans of K samples of each of B problems, relative and penalised for memory.
        fits: (B, K) bool, whether each sample fits into memory.
        counts: (B, K) bool, the samples from which the policy learns. The others have an advantage of 0, and they
            aren't in the baseline.
        config: the reward and its baseline.
        problems: (B,) numbers of the training problems.
        history: by number of the training problem, what the baseline needs of earlier rounds: for "moving" the moving
            average (), for "trials" the mean and the number of these rounds (2,). Updated in place.
    """
    worth = find_placement_reward(config.reward)(relative)
    worth = worth if config.failed is None else np.where(fits, worth, config.failed)
    rewards, kept = torch.from_numpy(worth.astype(np.float32)), torch.from_numpy(counts)
    if config.baseline == "quantile":
        upper = rewards.masked_fill(~kept, -torch.inf).quantile(config.quantile, 1, keepdim=True).nan_to_num(neginf=0.0)
        return Advantages(rewards, rewards, upper, (rewards - upper).clamp(min=0).masked_fill(~kept, 0.0))
    number = kept.sum(1)
    mean = rewards.masked_fill(~kept, 0.0).sum(1) / number.clamp(min=1)
    baseline = mean
    if config.baseline in ("moving", "trials"):
        baseline = mean.clone()
        for b in number.nonzero()[:, 0].tolist():
            baseline[b] = _remembered(mean[b], config, problems[b], history)
    return Advantages(rewards, rewards, baseline[:, None], (rewards - baseline[:, None]).masked_fill(~kept, 0.0))


def _remembered(mean: Tensor, config: OneShotLearningConfig, problem: int, history: dict[int, Tensor]) -> Tensor:
    """Return the baseline () from earlier rounds of a training problem, and add this round's mean reward () to them.

    In the first round it is the mean reward of this round; for "moving" it is `config.failed`, if there is one.
    """
    if config.baseline == "trials":
        before, rounds = history.get(problem, torch.stack([mean, torch.zeros(())])).unbind()
        history[problem] = torch.stack([before + (mean - before) / (rounds + 1.0), rounds + 1.0])
        return before
    before = history.get(problem, mean if config.failed is None else torch.tensor(config.failed))
    history[problem] = config.decay * before + (1.0 - config.decay) * mean
    return before


def scoring(
    policy: OneShotPolicy,
    inputs: Sequence[OneShotInput],
    samples: Sequence[Sample],
    advantage: Tensor,
    ranks: Ranks = ALONE,
) -> Callable[[np.ndarray], Iterator[Scored]]:
    """Return the function that scores minibatches of graphs for `policy_update`. Each rank scores its share of samples.

    Args:
        policy: the policy that is trained.
        inputs: B graphs.
        samples: K samples of each graph.
        advantage: (B, K) advantages of the samples.
        ranks: the processes that learn together.
    """

    def score(minibatch: np.ndarray) -> Iterator[Scored]:
        for place, rows in ranks.share_of_blocks(len(minibatch), advantage.shape[1]):
            b = int(minibatch[place])
            log_prob, entropy = policy.score(inputs[b], samples[b].action[rows])
            weight = (rows.stop - rows.start) / advantage.shape[1]
            yield Scored(log_prob, samples[b].log_prob[rows], advantage[b, rows, None], entropy, weight)

    return score
