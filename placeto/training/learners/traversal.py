"""How the policy of the Placeto paper learns: by REINFORCE on whole traversals of one graph, from one placement.

Addanki et al. 2019, arXiv 1906.08879, section 3.3 and appendix; docs/placeto-paper.md lists all differences.

Legend: C training problems, B episodes, T = G moves of a traversal, D devices, R rounds of a graph.
"""

from __future__ import annotations

import time

import numpy as np
import torch
from torch import Tensor

from placeto.environment.instance import make_instance
from placeto.environment.rewards import find_reward
from placeto.environment.walk import Walk
from placeto.heuristics.local_search.starts import best_cheap
from placeto.policies.placeto_paper import PlacetoPaperPolicy, Surroundings
from placeto.policies.traversal import Traversed, traverse
from placeto.problem.grouping import expand
from placeto.problem.problem import PlacementProblem
from placeto.simulator.evaluator import Evaluator
from placeto.training.config import TraversalLearningConfig, TraversalTrainConfig
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
from placeto.training.losses import Advantages, discounted_returns, step_baseline
from placeto.training.rollout import Stopwatch
from placeto.training.updates import gradient_step

REWARD_UNIT = 0.1  # rewards are in this unit: a tenth of the best single device's makespan
_COLUMNS = 4500  # most nodes of all states that are scored together, so that their tensors stay in the cache


class TraversalLearner:
    """Trains the policy of `placeto.policies.placeto_paper`; see `placeto.training.learners.learner.Learner`."""

    def __init__(self, run: Run) -> None:
        self.config: TraversalTrainConfig = run.config
        self.ranks, self.problems, self.validation = run.ranks, run.problems, run.validation

        def one(problem: PlacementProblem) -> tuple[Walk, Surroundings]:
            walk = Walk(make_instance(problem))
            return walk, Surroundings.of(walk)

        self.held_out = prepare(run.validation, one, run.report)
        self.heuristic = np.array([_best_heuristic(walk) for walk, _ in self.held_out])
        walks = self.held_out if run.validation is run.problems else prepare(run.problems, one, run.report)
        heuristics = self.heuristic if walks is self.held_out else map(_best_heuristic, next(zip(*walks, strict=True)))
        self.heuristics = [*heuristics]  # of the training problems
        self.walks = [(Walk(walk.instance, run.measure, i), around) for i, (walk, around) in enumerate(walks)]

    def initial_state(self) -> TrainState:
        """Make a state with a fresh policy, in which no placement was met."""
        count, most = len(self.walks), max(walk.instance.problem.num_ops for walk, _ in self.walks)
        return TrainState.fresh(self.config, np.zeros((count, most), np.int64), np.full(count, np.inf))

    def iterate(self, state: TrainState, done: float) -> dict[str, float]:
        """Run one iteration: this rank's traversals of a graph drawn at random, and one gradient step.

        Returns the numbers to log, by tag.
        """
        learning, ranks = self.config.learning, self.ranks
        began, watch = time.perf_counter(), Stopwatch()
        policy, index = _policy(state), int(state.random.integers(len(self.walks)))
        walk, around = self.walks[index]
        mine = ranks.share(learning.episodes)
        noise = torch.empty(walk.num_groups, learning.episodes, walk.num_devices)
        noise.exponential_(generator=state.torch_random)
        episodes = traverse(policy, walk, around, mine.stop - mine.start, noise[:, mine], watch.lap)
        makespan = self._merge(state, index, episodes)
        worth = advantages(makespan, learning, state.history, index)
        left = 1.0 - done
        lr = set_learning_rate(state.optimizer, learning.lr * (0.1 + 0.9 * left))
        entropy_weight = learning.entropy * left
        state.optimizer.zero_grad()
        loss, entropy = backward(policy, around, episodes, worth.advantage[:, mine], entropy_weight)
        norm = gradient_step(policy, state.optimizer, learning.max_grad_norm, ranks)
        decisions = makespan[1:].numel()
        loss, entropy, norms = ranks.sum([loss, entropy / decisions, float(norm) / ranks.size])
        watch.lap("network")
        return {
            "loss/policy": loss,
            "policy/entropy": entropy,
            "policy/entropy_weight": entropy_weight,
            "train/gradient_norm": norms,
            "train/learning_rate": lr,
            **worth.numbers(),
            **episode_makespans(makespan.numpy(), self.heuristics[index]),
            **seconds(watch, began),
        }

    def validate(self, state: TrainState) -> Validation:
        """Validate by the most likely traversal of each validation problem."""
        ends = [traverse(_policy(state), walk, around, 1).end for walk, around in self.held_out]
        end, best = (np.concatenate([getattr(state, name) for state in ends]) for name in ("makespan", "best"))
        groups = self.held_out[0][0].instance.groups
        scores, moves = (end, best, best / self.heuristic), np.array([walk.num_groups for walk, _ in self.held_out])
        return Validation(*scores, expand(groups, ends[0].best_placement[0]), judged=end, moves=moves)

    def validate_random(self) -> tuple[np.ndarray, np.ndarray]:
        """Return makespans (C,) at the end and best makespans (C,), means over `RANDOM` random traversals."""
        random, makespans = np.random.default_rng(self.config.seed), []
        for walk, _ in self.held_out:
            state = walk.begin(RANDOM, walk.random_start())
            for _ in range(walk.num_groups):
                state = state.move(random.integers(walk.num_devices, size=RANDOM))
            makespans.append((state.makespan.mean(), state.best.mean()))
        end, best = np.array(makespans).T
        return end, best

    def _merge(self, state: TrainState, index: int, episodes: Traversed) -> Tensor:
        """Remember the best placement that any rank met; return the makespans (T+1, B) of all ranks."""
        end = episodes.end
        best = int(end.best.argmin())
        found = (end.best[best], end.best_placement[best], end.simulated, episodes.makespan.numpy())
        scores, placements, simulated, makespans = zip(*self.ranks.gather(found), strict=True)
        for score, placement in zip(scores, placements, strict=True):
            state.keep(index, score, expand(self.walks[index][0].instance.groups, placement))
        state.simulations += sum(simulated)
        return torch.from_numpy(np.concatenate(makespans, 1))


def advantages(
    makespan: Tensor, config: TraversalLearningConfig, history: dict[int, Tensor], problem: int
) -> Advantages:
    """Compute rewards, returns, their baseline and advantages, each (T, B), of traversals of one training problem.

    Args:
        makespan: (T+1, B), relative to the best single device.
        config: reward, discount and rounds of the baseline.
        history: by number of the training problem, (R, T) mean returns of its last rounds; updated in place.
        problem: number of the training problem.
    """
    rewards = find_reward(config.reward)(makespan) / REWARD_UNIT
    returns = discounted_returns(rewards, config.discount)
    before = history.get(problem, returns.new_zeros(0, len(returns)))
    baseline, history[problem] = step_baseline(before, returns, config.baseline_rounds)
    return Advantages(rewards, returns, baseline[:, None].expand_as(returns), returns - baseline[:, None])


def backward(
    policy: PlacetoPaperPolicy, around: Surroundings, episodes: Traversed, advantage: Tensor, entropy_weight: float
) -> tuple[float, float]:
    """Add the gradient of the loss to the parameters' gradients; return the loss, and the entropy in nats.

    Gradient, loss and entropy are sums over the decisions of the episodes. `advantage` (T, B) is that of the same
    episodes.
    """
    moves, count, groups, _ = episodes.features.shape
    together = max(1, _COLUMNS // (count * groups))
    loss = entropy = 0.0
    for t in range(0, moves, together):
        part = slice(t, t + together)
        current = episodes.current[part].repeat_interleave(count)
        log_probs = policy(episodes.features[part].flatten(0, 1), current, around).log_softmax(-1)
        chosen = log_probs.gather(1, episodes.action[part].reshape(-1, 1))[:, 0]
        uncertainty = -(log_probs.exp() * log_probs).sum()
        of_part = -(chosen * advantage[part].flatten()).sum() - entropy_weight * uncertainty
        of_part.backward()
        loss, entropy = loss + float(of_part.detach()), entropy + float(uncertainty.detach())
    return loss, entropy


def _best_heuristic(walk: Walk) -> float:
    """Return the makespan of the best constructive placement, relative to the best single device."""
    evaluator = Evaluator(walk.instance.problem, walk.instance.groups)
    best_cheap(evaluator)
    return evaluator.best_score / walk.instance.problem.single_device_us


def _policy(state: TrainState) -> PlacetoPaperPolicy:
    assert isinstance(state.policy, PlacetoPaperPolicy)
    return state.policy
