"""One gradient update of a policy from an iteration's episodes or samples: supervised, PPO or REINFORCE.

Legend: T moves, B episodes, L labelled moves a state, V nodes of all episodes together, D devices, K samples (or
episodes) scored together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch_geometric.data import Data

from placeto.environment.rewards import find_reward
from placeto.policies.placeto import PlacetoPolicy
from placeto.training.config import LearningConfig, OneShotLearningConfig
from placeto.training.losses import (
    Advantages,
    discounted_returns,
    listwise_loss,
    policy_change,
    ppo_loss,
    reinforce_loss,
    replica_advantages,
)
from placeto.training.ranks import ALONE, Ranks
from placeto.training.rollout import DivergedError, Labels

CHANGE_CLIP = 0.2  # labels beyond it are equally bad (or good)
SMALL_CHANGE = 0.02  # the error of a label of this size weighs half as much as that of one of no change
RANKING = 0.3  # weight of the odds of a state's moves, in addition to the errors of their changes
SHARPNESS, LEAST_GAIN = 3.0, 1e-3  # see `listwise_loss`


def supervised_update(
    policy: PlacetoPolicy,
    optimizer: torch.optim.Optimizer,
    states: Iterable[tuple[Data, Labels]],
    config: LearningConfig,
    ranks: Ranks = ALONE,
) -> dict[str, float]:
    """Fit the predicted change of the makespan by single moves to simulated labels, one gradient step for each state.

    Huber loss in per cent, so that 1 % off is where it turns linear; the smaller a change, the more its error counts,
    since moves of small changes are what a good placement leaves to choose from. Beside it stands what the policy's
    odds say of the moves that gain most, which a search tries first. `states` are this rank's, those of several graphs
    together in each; losses are means over all ranks'.
    """
    total, steps = torch.zeros(4, dtype=torch.float64), 0
    for data, labels in states:
        weight = ranks.weight(len(labels.change))
        predicted = policy.changes(data, labels.slot, labels.device)
        target = labels.change.clamp(-CHANGE_CLIP, CHANGE_CLIP)
        error = nn.functional.smooth_l1_loss(100 * predicted, 100 * target, reduction="none")
        loss = weight * (error * SMALL_CHANGE / (SMALL_CHANGE + target.abs())).mean()
        logits, of = -policy.config.change_weight * predicted, data.batch[labels.slot]
        ranking = ranks.weight(len(of.unique())) * listwise_loss(logits, -target, of, SHARPNESS, LEAST_GAIN)
        optimizer.zero_grad()
        (loss + RANKING * ranking).backward()
        norm = weight * gradient_step(policy, optimizer, config.max_grad_norm, ranks)
        mean_error = weight * (predicted - target).detach().abs().mean()
        total += torch.tensor([float(loss.detach()), float(ranking.detach()), float(norm), float(mean_error)])
        steps += 1
    names = "loss/supervised", "loss/ranking", "train/gradient_norm", "loss/label_error"
    return dict(zip(names, ranks.sum((total / steps).tolist()), strict=True))


def advantages(makespan: Tensor, config: LearningConfig, graph: np.ndarray) -> Advantages:
    """Rewards, returns, their baseline and advantages, each (T, B), of an iteration's episodes.

    Args:
        makespan: (T+1, B), relative, as in `Rollout`, of all ranks' episodes.
        config: reward and discount.
        graph: (B,) training instance of each episode.
    """
    rewards = find_reward(config.reward)(makespan)
    returns = discounted_returns(rewards, config.discount)
    which, replica = np.unique(graph, return_inverse=True)
    advantage = replica_advantages(returns, torch.from_numpy(replica), len(which))
    return Advantages(rewards, returns, returns - advantage, advantage)


@dataclass(frozen=True)
class Scored:
    """Decisions that were made, under the policy as it is now: this rank's part of a move, or of a graph's samples."""

    log_prob: Tensor  # (K,), or (K, A) of A decisions of each sample
    old: Tensor  # the same shape, under the policy that decided
    advantage: Tensor  # (K,) or (K, 1)
    entropy: Tensor  # (K,)
    weight: float  # this rank's share of what is scored together


def policy_update(
    policy: nn.Module,
    optimizer: torch.optim.Optimizer,
    count: int,
    score: Callable[[np.ndarray], Iterable[Scored]],
    config: LearningConfig | OneShotLearningConfig,
    random: np.random.Generator,
    *,
    entropy: float,
    ranks: Ranks = ALONE,
) -> dict[str, float]:
    """PPO or REINFORCE: the one loop for moves of episodes and for samples of whole placements.

    A gradient step takes `config.minibatch` of them; REINFORCE is on-policy, it takes all at once, and once. Losses are
    means over decisions, so that large graphs weigh as much as small ones; PPO clips the ratio of each decision.

    Args:
        policy: whose parameters `optimizer` changes.
        optimizer: of them.
        count: how many moves, or graphs, there are.
        score: of a minibatch of their numbers to what this rank scores of each.
        config: algorithm and its settings.
        random: draws the order of each epoch.
        entropy: weight of the entropy bonus.
        ranks: the processes that learn together.
    """
    ppo = config.algorithm == "ppo"
    orders = [random.permutation(count) for _ in range(config.epochs if ppo else 1)]
    tags = (
        "loss/policy",
        "train/gradient_norm",
        "policy/entropy",
        *(("policy/kl", "policy/clipped_share") if ppo else ()),
    )
    totals, updates = dict.fromkeys(tags, 0.0), 0
    for order in orders:
        for minibatch in np.array_split(order, max(1, count // config.minibatch) if ppo else 1):
            optimizer.zero_grad()
            for of in score(minibatch):
                if ppo:
                    loss = ppo_loss(of.log_prob, of.old, of.advantage, of.entropy, config.clip, entropy)
                else:
                    loss = reinforce_loss(of.log_prob, of.advantage, of.entropy, entropy)
                weight = of.weight / len(minibatch)
                (weight * loss).backward()
                totals["loss/policy"] += weight * float(loss.detach())
                totals["policy/entropy"] += weight * float(of.entropy.detach().mean())
                if ppo:
                    kl, clipped = policy_change(of.log_prob, of.old, config.clip)
                    totals["policy/kl"] += weight * kl
                    totals["policy/clipped_share"] += weight * clipped
            norm = gradient_step(policy, optimizer, config.max_grad_norm, ranks)
            totals["train/gradient_norm"] += float(norm) / ranks.size
            updates += 1
    sums = ranks.sum(list(totals.values()))
    numbers = {tag: total / updates for tag, total in zip(totals, sums, strict=True)}
    return numbers | {"policy/entropy_weight": entropy}


def gradient_step(policy: nn.Module, optimizer: torch.optim.Optimizer, max_norm: float, ranks: Ranks = ALONE) -> Tensor:
    """A step along the sum of all ranks' gradients, those there are, scaled down to a norm; returns the norm before.

    Raises:
        DivergedError: a gradient isn't finite; the parameters are as they were.
    """
    ranks.sum_gradients(policy)
    norm = nn.utils.clip_grad_norm_(policy.parameters(), max_norm)
    if not norm.isfinite():  # so it is where a loss isn't
        raise DivergedError("the gradients are not finite")
    optimizer.step()
    return norm
