"""One gradient update of a policy from an iteration's episodes: supervised, PPO or REINFORCE.

Legend: T moves, B episodes, L labelled moves a state, V nodes of all episodes together, D devices.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from placeto.config import LearningConfig
from placeto.policies.base import PairDistribution
from placeto.reinforce import (
    REWARDS,
    at_the_end_only,
    discounted_returns,
    normalise,
    ppo_loss,
    reinforce_loss,
    replica_advantages,
    step_baseline_update,
)
from placeto.rollout import Rollout

CHANGE_CLIP = 0.2  # labels beyond it are equally bad (or good)


def supervised_update(
    policy: nn.Module,
    optimizer: torch.optim.Optimizer,
    episodes: Rollout,
    config: LearningConfig,
    order: np.ndarray,
) -> dict[str, float]:
    """Fit the predicted change of the makespan by single moves to simulated labels, a step at a time.

    Huber loss in per cent, so that 1 % off is where it turns linear. `order` (T,) is the order of the states.
    """
    total = torch.zeros(3, dtype=torch.float64)
    for t in order:
        labels = episodes.labels[t]
        _, change = policy(episodes.data[t])
        predicted = change[labels.slot, labels.device]
        target = labels.change.clamp(-CHANGE_CLIP, CHANGE_CLIP)
        loss = nn.functional.smooth_l1_loss(100 * predicted, 100 * target)
        optimizer.zero_grad()
        loss.backward()
        norm = gradient_step(policy, optimizer, config.max_grad_norm)
        total += torch.tensor([float(loss.detach()), float(norm), float((predicted - target).detach().abs().mean())])
    loss_mean, norm_mean, error = (total / len(order)).tolist()
    return {"loss/supervised": loss_mean, "train/gradient_norm": norm_mean, "train/label_error": error}


def advantages(
    episodes: Rollout, config: LearningConfig, graph: np.ndarray, history: dict[int, Tensor]
) -> tuple[Tensor, Tensor]:
    """Returns (T, B) and advantages (T, B) of an iteration's episodes.

    Args:
        episodes: what happened.
        config: reward, discount and reward baseline.
        graph: (B,) training instance of each episode.
        history: returns of earlier rounds by instance, for the "steps" baseline; updated in place.
    """
    best = torch.cummin(episodes.makespan, 0).values
    rewards = REWARDS[config.reward](episodes.makespan[:-1], episodes.makespan[1:], best[:-1])
    if not config.intermediate_rewards:
        rewards = at_the_end_only(rewards)
    returns = discounted_returns(rewards, config.discount)
    if config.baseline == "replicas":
        which, replica = np.unique(graph, return_inverse=True)
        return returns, replica_advantages(returns, torch.from_numpy(replica), len(which))
    result = torch.empty_like(returns)
    for instance in np.unique(graph).tolist():
        columns = torch.from_numpy(np.flatnonzero(graph == instance))
        past = history.get(instance, returns.new_zeros(0, len(returns)))
        baseline, past = step_baseline_update(past, returns[:, columns])
        history[instance] = past[-config.baseline_rounds :]
        result[:, columns] = returns[:, columns] - baseline[:, None]
    return returns, result


def policy_update(
    policy: nn.Module,
    optimizer: torch.optim.Optimizer,
    episodes: Rollout,
    advantage: Tensor,
    config: LearningConfig,
    orders: list[np.ndarray],
) -> dict[str, float]:
    """PPO or REINFORCE on the episodes' moves.

    A gradient step takes `config.minibatch` moves of all B episodes; REINFORCE is on-policy, it takes all T at once.
    `orders` holds one order (T,) of the moves for each epoch.
    """
    advantage = normalise(advantage)
    totals, updates = {"loss/policy": 0.0, "train/gradient_norm": 0.0, "train/entropy": 0.0}, 0
    for order in orders:
        size = config.minibatch if config.algorithm == "ppo" else len(order)
        for minibatch in np.array_split(order, max(1, len(order) // size)):
            optimizer.zero_grad()
            for t in minibatch:
                data = episodes.data[t]
                distribution = PairDistribution.from_logits(policy(data)[0], data, config.temperature)
                log_prob, entropy = distribution.log_prob(episodes.action[t]), distribution.entropy()
                if config.algorithm == "ppo":
                    old = episodes.log_prob[t]
                    loss = ppo_loss(log_prob, old, advantage[t], entropy, config.clip, config.entropy)
                else:
                    loss = reinforce_loss(log_prob, advantage[t], entropy, config.entropy)
                (loss / len(minibatch)).backward()
                totals["loss/policy"] += float(loss.detach()) / len(minibatch)
                totals["train/entropy"] += float(entropy.detach().mean()) / len(minibatch)
            totals["train/gradient_norm"] += float(gradient_step(policy, optimizer, config.max_grad_norm))
            updates += 1
    return {tag: total / updates for tag, total in totals.items()}


def gradient_step(policy: nn.Module, optimizer: torch.optim.Optimizer, max_norm: float) -> Tensor:
    """A step along the gradients there are, scaled down to a norm; returns the norm before."""
    norm = nn.utils.clip_grad_norm_(policy.parameters(), max_norm)
    optimizer.step()
    return norm
