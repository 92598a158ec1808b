"""Learning of a one-shot policy: K placements of each of some graphs a round, REINFORCE or PPO on their makespans.

The reward of Mirhoseini et al. 2017 (arXiv 1706.04972, section 3.1): minus the square root of the run time, here
relative to the best single device, less a moving average over earlier rounds of the graph.

Legend: C training problems, B of them in a round, K samples, A decisions of a sample, N ops, W ops of the largest.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from placeto.environment.instance import Measure
from placeto.environment.rewards import square_root
from placeto.heuristics.local_search.starts import best_cheap
from placeto.policies.external import find_policy
from placeto.policies.one_shot.base import OneShotPolicy, Sample
from placeto.policies.one_shot.inputs import OneShotInput, UnitKind, make_input
from placeto.policies.one_shot.randomness import SharedGenerator
from placeto.problem.grouping import group_ops
from placeto.problem.problem import PlacementProblem, ProblemBatch
from placeto.simulator.evaluator import Evaluator
from placeto.simulator.memory import penalised
from placeto.simulator.schedule import simulate_batch
from placeto.training.config import OneShotLearningConfig, OneShotTrainConfig
from placeto.training.learners.base import TrainState, Validation, prepare, seconds, set_learning_rate
from placeto.training.losses import normalise
from placeto.training.ranks import ALONE, Ranks, concatenate
from placeto.training.rollout import Stopwatch
from placeto.training.updates import Scored, policy_update


@dataclass(frozen=True, eq=False)
class Family:
    """Prepared problems: the policy's inputs, the simulator's arrays, the best cheap heuristic."""

    inputs: tuple[OneShotInput, ...]  # (C,)
    units: tuple[np.ndarray, ...]  # (C,), unit (N,) of each op
    batch: ProblemBatch
    single_us: np.ndarray  # (C,) float64, best single-device makespan
    heuristic: np.ndarray  # (C,) float64, relative makespan of the best cheap heuristic
    measure: Measure | None = None  # if given, makespans are measured

    @classmethod
    def of(
        cls, problems: Mapping[str, PlacementProblem], kind: UnitKind, device: str, report: Callable[[str], None]
    ) -> Family:
        """Describe each problem, and place it by the cheap heuristics for comparison."""

        def one(problem: PlacementProblem) -> tuple[OneShotInput, float]:
            evaluator = Evaluator(problem, group_ops(problem))
            best_cheap(evaluator)
            return make_input(problem, kind), evaluator.best_score / problem.single_device_us

        inputs, heuristic = zip(*prepare(problems, one, report), strict=True)
        return cls(
            inputs=tuple(graph.to(device) for graph in inputs),
            units=tuple(graph.unit.numpy() for graph in inputs),
            batch=ProblemBatch.of(list(problems.values())),
            single_us=np.array([problem.single_device_us for problem in problems.values()]),
            heuristic=np.array(heuristic),
        )

    def expand(self, index: int, placement: Tensor) -> np.ndarray:
        """(K, W) int64 placements of ops, padded, from placements (K, U) of a problem's units."""
        ops = placement.cpu().numpy()[:, self.units[index]]
        return np.pad(ops, ((0, 0), (0, self.batch.max_ops - ops.shape[1])))

    def score(self, index: np.ndarray, placements: np.ndarray) -> np.ndarray:
        """(B,) penalised makespans relative to the best single device, of placements (B, W) of problems (B,)."""
        makespan_us, overflow = simulate_batch(self.batch, index, placements)
        if self.measure is not None:
            ops = [self.batch.problems[number].num_ops for number in index]
            rows = zip(index.tolist(), placements, ops, strict=True)
            makespan_us = np.array([self.measure(number, row[:count]) for number, row, count in rows])
        return penalised(makespan_us, overflow) / self.single_us[index]


class OneShotLearner:
    """Trains a policy that places whole graphs; see `placeto.training.learners.base.Learner`."""

    def __init__(
        self,
        config: OneShotTrainConfig,
        problems: Mapping[str, PlacementProblem],
        validation: Mapping[str, PlacementProblem],
        report: Callable[[str], None],
        ranks: Ranks = ALONE,
        measure: Measure | None = None,
    ) -> None:
        self.config, self.ranks = config, ranks
        self.problems, self.validation = problems, validation
        self.family = Family.of(problems, config.policy.units, config.device, report)
        same = validation is problems  # what is cheap for others takes seconds for a graph of 50,000 ops
        self.held_out = self.family if same else Family.of(validation, config.policy.units, config.device, report)
        self.family = replace(self.family, measure=measure)

    def initial_state(self) -> TrainState:
        """A fresh policy, no placement met."""
        config, family = self.config, self.family
        torch.manual_seed(config.seed)
        policy = find_policy(config.placer).policy(config.policy).to(config.device)
        for graph in (*family.inputs, *self.held_out.inputs):
            policy.check(graph)
        return TrainState(
            policy=policy,
            optimizer=torch.optim.Adam(policy.parameters(), lr=config.learning.lr),
            torch_random=torch.Generator(config.device).manual_seed(config.seed),
            random=np.random.default_rng(config.seed),
            elite=np.zeros((len(family.inputs), family.batch.max_ops), np.int64),
            elite_score=np.full(len(family.inputs), np.inf),
        )

    def iterate(self, state: TrainState, done: float) -> dict[str, float]:
        """One round: sample, simulate all samples in one call, step. Returns the numbers to log."""
        family, learning, policy, ranks = self.family, self.config.learning, _policy(state), self.ranks
        began, watch = time.perf_counter(), Stopwatch()
        count = min(learning.graphs, len(family.inputs))
        chosen = state.random.choice(len(family.inputs), count, replace=False)
        samples, relative = self._sample(state, chosen, watch)
        self._keep_elite(state, chosen, samples, relative)
        state.simulations += relative.size
        advantage = advantages(relative, learning, chosen.tolist(), state.history).to(self.config.device)
        advantage = normalise(advantage) if learning.normalise else advantage
        lr = set_learning_rate(state.optimizer, learning.lr * (1.0 - done))
        numbers = policy_update(
            policy,
            state.optimizer,
            count,
            scoring(policy, [family.inputs[i] for i in chosen], samples, advantage, ranks),
            learning,
            state.random,
            entropy=learning.entropy * (1.0 - done),
            ranks=ranks,
        )
        watch.lap("network")
        return numbers | {
            "makespan/train": float(relative.mean()),
            "makespan/train_to_heuristic": float((relative.min(1) / family.heuristic[chosen]).mean()),
            "train/learning_rate": lr,
            **seconds(watch, began),
        }

    def validate(self, state: TrainState) -> Validation:
        """The most likely placement of each validation problem."""
        held_out, policy = self.held_out, _policy(state)
        samples = policy.decide(held_out.inputs, [policy.noise(graph, 1, None) for graph in held_out.inputs])
        placements = np.concatenate([held_out.expand(i, sample.placement) for i, sample in enumerate(samples)])
        relative = held_out.score(np.arange(len(placements)), placements)
        first = held_out.batch.problems[0].num_ops
        return Validation(relative, relative / held_out.heuristic, placements[0, :first])

    def best_placement(self, state: TrainState, index: int) -> np.ndarray:
        """(N,) best placement of a training problem's ops met so far."""
        return state.elite[index, : self.family.batch.problems[index].num_ops]

    def _sample(self, state: TrainState, chosen: np.ndarray, watch: Stopwatch) -> tuple[list[Sample], np.ndarray]:
        """K samples of each of some problems (B,), and their relative makespans (B, K); each rank makes its share.

        What the other ranks draw is drawn here too, and dropped.
        """
        family, policy, ranks, random = self.family, _policy(state), self.ranks, state.torch_random
        count = self.config.learning.samples
        share = dict(ranks.share_of_blocks(len(chosen), count))
        noise = []
        for b, problem in enumerate(chosen):
            rows = share.get(b, slice(0, 0))
            shared = SharedGenerator(random, rows, count)
            noise.append(policy.noise(family.inputs[problem], rows.stop - rows.start, shared))
        parts = policy.decide([family.inputs[chosen[b]] for b in share], [noise[b] for b in share])
        placements = [family.expand(chosen[b], part.placement) for b, part in zip(share, parts, strict=True)]
        watch.lap("network")
        index = np.repeat(chosen[list(share)], [len(part.action) for part in parts])
        score = family.score(index, np.concatenate(placements))
        watch.lap("simulation")
        if ranks.size > 1:
            parts, score = self._exchange(len(chosen), list(share), parts, score)
        watch.lap(None)
        return parts, score.reshape(len(chosen), count)

    def _exchange(
        self, count: int, blocks: Sequence[int], parts: Sequence[Sample], score: np.ndarray
    ) -> tuple[list[Sample], np.ndarray]:
        """All ranks' samples of each problem, and their scores (B * K,), from this rank's parts of some problems."""
        sent = [[x.cpu() for x in (part.action, part.log_prob, part.placement)] for part in parts]
        received = self.ranks.gather((list(zip(blocks, sent, strict=True)), score))
        device = self.config.device
        samples = []
        for b in range(count):
            fields = zip(*(part for of_rank, _ in received for block, part in of_rank if block == b), strict=True)
            samples.append(Sample(*(torch.cat(pieces).to(device) for pieces in fields)))
        return samples, concatenate([scores for _, scores in received])

    def _keep_elite(
        self, state: TrainState, chosen: np.ndarray, samples: Sequence[Sample], relative: np.ndarray
    ) -> None:
        """Remember the best placement of each problem."""
        for b, problem in enumerate(chosen):
            best = int(relative[b].argmin())
            if relative[b, best] < state.elite_score[problem]:
                state.elite_score[problem] = relative[b, best]
                state.elite[problem] = self.family.expand(problem, samples[b].placement[best : best + 1])[0]


def _policy(state: TrainState) -> OneShotPolicy:
    assert isinstance(state.policy, OneShotPolicy)
    return state.policy


def advantages(
    relative: np.ndarray, config: OneShotLearningConfig, problems: Sequence[int], history: dict[int, Tensor]
) -> Tensor:
    """Rewards less their baseline: (B, K) float32, from relative makespans (B, K).

    With the "quantile" baseline samples below it count for nothing: the risk-seeking policy gradient of Petersen et
    al. 2021 (arXiv 1912.04871), which seeks the best placement, not the best mean.

    Args:
        relative: of K samples of each of B problems.
        config: the reward baseline.
        problems: (B,) which training problems these are.
        history: the "moving" baseline's averages by training problem; updated in place.
    """
    rewards = torch.from_numpy(square_root(relative).astype(np.float32))
    if config.baseline == "quantile":
        return (rewards - rewards.quantile(config.quantile, 1, keepdim=True)).clamp(min=0)
    mean = rewards.mean(1)
    baseline = mean
    if config.baseline == "moving":
        baseline = torch.stack([history.get(problem, mean[b]) for b, problem in enumerate(problems)])
        for b, problem in enumerate(problems):
            history[problem] = config.decay * baseline[b] + (1.0 - config.decay) * mean[b]
    return rewards - baseline[:, None]


def scoring(
    policy: OneShotPolicy,
    inputs: Sequence[OneShotInput],
    samples: Sequence[Sample],
    advantage: Tensor,
    ranks: Ranks = ALONE,
) -> Callable[[np.ndarray], Iterator[Scored]]:
    """What `policy_update` scores: K samples of each of B graphs with advantages (B, K); each rank takes its share."""

    def score(minibatch: np.ndarray) -> Iterator[Scored]:
        for place, rows in ranks.share_of_blocks(len(minibatch), advantage.shape[1]):
            b = int(minibatch[place])
            log_prob, entropy = policy.score(inputs[b], samples[b].action[rows])
            weight = (rows.stop - rows.start) / advantage.shape[1]
            yield Scored(log_prob, samples[b].log_prob[rows], advantage[b, rows, None], entropy, weight)

    return score
