"""The gradient steps of one iteration, from its episodes or samples: supervised, PPO or REINFORCE.

Legend: T moves, B episodes, L labelled moves a state, V nodes of all episodes together, D devices, K samples (or
episodes) scored together, A decisions of a sample.
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

CHANGE_CLIP = 0.2  # labels are clipped to this size: larger changes count as equally bad (or good)
SMALL_CHANGE = 0.02  # the error at a label of this size weighs half as much as the error at a label of 0
RANKING = 0.3  # weight of `listwise_loss` in the loss
SHARPNESS, LEAST_GAIN = 3.0, 1e-3  # see `listwise_loss`


def supervised_update(
    policy: PlacetoPolicy,
    optimizer: torch.optim.Optimizer,
    states: Iterable[tuple[Data, Labels]],
    config: LearningConfig,
    ranks: Ranks = ALONE,
) -> dict[str, float]:
    """Fit the predicted changes of the makespan by single moves to labels, with one gradient step for each of `states`.

    The loss is a Huber loss of the changes in per cent, which is linear for errors above 1 %, plus `listwise_loss`.
    Errors at small labels weigh more, because from a good placement, the choice is among moves with small changes.
    `listwise_loss` is about the moves that gain most, which a search tries first.

    Args:
        policy: the policy that is trained.
        optimizer: the optimizer of its parameters.
        states: for each gradient step, an observation of this rank's states and their labels, none of them `MISSING`.
        config: the largest norm of gradients.
        ranks: the processes that learn together; losses are means over the labels, or states, of all of them.

    Returns:
        Means over the gradient steps, by tensorboard tag.

    Raises:
        DivergedError: a gradient isn't finite.
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
    """Compute rewards, returns, their baseline and advantages, each (T, B), of an iteration's episodes.

    The baseline is the mean return of the replicas, that is of the episodes on the same graph, at the same step.

    Args:
        makespan: (T+1, B), relative, as in `Rollout`, of the episodes of all ranks.
        config: reward and discount.
        graph: (B,) training instance of each episode.
    """
    rewards = find_reward(config.reward)(makespan)
    returns = discounted_returns(rewards, config.discount)
    advantage = replica_advantages(returns, torch.from_numpy(graph))
    return Advantages(rewards, returns, returns - advantage, advantage)


@dataclass(frozen=True)
class Scored:
    """Earlier decisions of this rank, scored by the present policy: those at one move, or in samples of one graph."""

    log_prob: Tensor  # (K,) log-probabilities by the present policy, or (K, A) of the A decisions of each sample
    old: Tensor  # the same shape, log-probabilities by the policy that made the decisions
    advantage: Tensor  # (K,) or (K, 1)
    entropy: Tensor  # (K,) entropies of the present policy, in nats a decision
    weight: float  # K / number of samples (or episodes) of all ranks


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
    """Update a policy by PPO or REINFORCE, from moves of episodes or from samples of whole placements.

    PPO goes through the moves, or graphs, in `config.epochs` passes. Each of its gradient steps takes at least
    `config.minibatch` of them, if there are as many. REINFORCE is on-policy: it takes all of them in one gradient step.
    Losses are means over decisions, so that large graphs weigh as much as small ones. PPO clips the ratio of each
    decision.

    Args:
        policy: the policy whose parameters are updated.
        optimizer: the optimizer of these parameters.
        count: number of moves, or of graphs.
        score: maps the numbers of a minibatch's moves, or graphs, to what this rank scores of each.
        config: the algorithm and its settings.
        random: draws the order of each pass.
        entropy: weight of the entropy bonus.
        ranks: the processes that learn together.

    Returns:
        Means over the gradient steps, by tensorboard tag.

    Raises:
        DivergedError: a gradient isn't finite.
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
            for scored in score(minibatch):
                if ppo:
                    loss = ppo_loss(scored.log_prob, scored.old, scored.advantage, scored.entropy, config.clip, entropy)
                else:
                    loss = reinforce_loss(scored.log_prob, scored.advantage, scored.entropy, entropy)
                weight = scored.weight / len(minibatch)
                (weight * loss).backward()
                totals["loss/policy"] += weight * float(loss.detach())
                totals["policy/entropy"] += weight * float(scored.entropy.detach().mean())
                if ppo:
                    kl, clipped = policy_change(scored.log_prob, scored.old, config.clip)
                    totals["policy/kl"] += weight * kl
                    totals["policy/clipped_share"] += weight * clipped
            norm = gradient_step(policy, optimizer, config.max_grad_norm, ranks)
            totals["train/gradient_norm"] += float(norm) / ranks.size
            updates += 1
    sums = ranks.sum(list(totals.values()))
    numbers = {tag: total / updates for tag, total in zip(totals, sums, strict=True)}
    return numbers | {"policy/entropy_weight": entropy}


def gradient_step(policy: nn.Module, optimizer: torch.optim.Optimizer, max_norm: float, ranks: Ranks = ALONE) -> Tensor:
    """Make an optimizer step by the sum of all ranks' gradients, and return the norm of this sum.

    A larger norm than `max_norm` is scaled down to it before the step. Parameters without a gradient stay as they are.

    Raises:
        DivergedError: the norm isn't finite; the parameters are as they were.
    """
    ranks.sum_gradients(policy)
    norm = nn.utils.clip_grad_norm_(policy.parameters(), max_norm)
    if not norm.isfinite():  # also the case if a loss isn't finite
        raise DivergedError("the gradients are not finite")
    optimizer.step()
    return norm
