"""Returns, advantages, reward baselines and policy-gradient losses: pure functions.

Legend: T steps of an episode, B episodes, L labelled moves of S states together.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch_geometric.utils import scatter, softmax

LEAST_DEVIATION = 1e-6
"""Of advantages that say something; rewards are float32, about 1."""


@dataclass(frozen=True, eq=False)
class Advantages:
    """What an iteration's decisions were worth: T moves of B episodes, or K placements of each of B graphs."""

    rewards: Tensor  # (T, B) or (B, K)
    returns: Tensor  # the same shape
    baseline: Tensor  # the same shape, or (B, 1)
    advantage: Tensor  # the same shape as the rewards

    def numbers(self) -> dict[str, float]:
        """Their means, and deviations, to log."""
        return {
            "reward/mean": float(self.rewards.mean()),
            "return/mean": float(self.returns.mean()),
            "return/std": float(self.returns.std(unbiased=False)),
            "baseline/mean": float(self.baseline.mean()),
            "advantage/mean": float(self.advantage.mean()),
            "advantage/std": float(self.advantage.std(unbiased=False)),
        }


def discounted_returns(rewards: Tensor, discount: float) -> Tensor:
    """Sum of the rewards from each step on, discounted: (T, B) -> (T, B).

    >>> discounted_returns(torch.tensor([[1.0], [0.0], [2.0]]), 0.5).flatten().tolist()
    [1.5, 1.0, 2.0]
    """
    returns = torch.empty_like(rewards)
    running = torch.zeros_like(rewards[0])
    for t in range(len(rewards) - 1, -1, -1):
        running = rewards[t] + discount * running
        returns[t] = running
    return returns


def replica_advantages(returns: Tensor, graph: Tensor, graphs: int) -> Tensor:
    """Returns minus their mean, step by step, over the episodes of the same graph and start.

    Args:
        returns: (T, B).
        graph: (B,) int64 in 0..graphs-1, which replicas belong together.
        graphs: number of different values.

    Returns:
        (T, B) advantages.
    """
    count = torch.bincount(graph, minlength=graphs).clamp(min=1).to(returns.dtype)
    total = returns.new_zeros(returns.shape[0], graphs).index_add_(1, graph, returns)
    return returns - (total / count)[:, graph]


def step_baseline(history: Tensor, returns: Tensor, rounds: int) -> tuple[Tensor, Tensor]:
    """Placeto's reward baseline of one graph: the mean return at each step over the last rounds (section 3.3).

    As in the paper's code, the present round is one of them.

    Args:
        history: (R, T) mean returns of earlier rounds, oldest first; R may be 0.
        returns: (T, B) returns of this round's episodes.
        rounds: how many, this one included.

    Returns:
        baseline (T,), and the last rounds (R, T) with this one.
    """
    history = torch.cat([history, returns.mean(1)[None]])[-rounds:]
    return history.mean(0), history


def normalise(advantages: Tensor) -> Tensor:
    """Advantages divided by their standard deviation (the mean is left to the reward baseline).

    Zeros where that is below `LEAST_DEVIATION`: dividing would make advantages of 6 of rounding errors of 6e-8.

    >>> normalise(torch.tensor([6e-8, 6e-8, 0.0])).tolist()
    [0.0, 0.0, 0.0]
    """
    deviation = advantages.std(unbiased=False)
    return advantages / (deviation + 1e-8) if deviation > LEAST_DEVIATION else torch.zeros_like(advantages)


def reinforce_loss(log_prob: Tensor, advantages: Tensor, entropy: Tensor, entropy_weight: float) -> Tensor:
    """REINFORCE (Williams 1992): minus the mean of log-probability x advantage, less an entropy bonus."""
    return -(log_prob * advantages).mean() - entropy_weight * entropy.mean()


def ppo_loss(
    log_prob: Tensor, old_log_prob: Tensor, advantages: Tensor, entropy: Tensor, clip: float, entropy_weight: float
) -> Tensor:
    """PPO's clipped surrogate (Schulman et al. 2017, arXiv 1707.06347), less an entropy bonus.

    >>> one, up = torch.zeros(1), torch.full((1,), 1.0)
    >>> round(float(ppo_loss(up, one, torch.ones(1), one, clip=0.2, entropy_weight=0.0)), 3)
    -1.2
    """
    ratio = (log_prob - old_log_prob).exp()
    surrogate = torch.minimum(ratio * advantages, ratio.clamp(1 - clip, 1 + clip) * advantages)
    return -surrogate.mean() - entropy_weight * entropy.mean()


def policy_change(log_prob: Tensor, old_log_prob: Tensor, clip: float) -> tuple[float, float]:
    """How far a policy has moved: divergence from the old one in nats a decision, and share of clipped ratios.

    The divergence is estimated from decisions of the old policy, as the mean of r - 1 - log r of the ratios r, which
    has no bias and is never negative: Schulman, "Approximating KL Divergence", 2020.

    >>> policy_change(torch.log(torch.tensor([0.5, 2.0])), torch.zeros(2), 0.6)
    (0.25, 0.5)
    """
    log_ratio = (log_prob - old_log_prob).detach()
    ratio = log_ratio.exp()
    return float((ratio - 1.0 - log_ratio).mean()), float(((ratio - 1.0).abs() > clip).float().mean())


def listwise_loss(logits: Tensor, gain: Tensor, state: Tensor, sharpness: float, least: float) -> Tensor:
    """Cross-entropy of the odds of each state's moves and the softmax of their exact gains, a mean over states.

    Of the moves of a state those count that gain most: the odds that it asks of one fall with what it gains less than
    the best. After ListNet: Cao et al., "Learning to Rank: From Pairwise Approach to Listwise Approach", ICML 2007.

    Args:
        logits: (L,) of the moves.
        gain: (L,) by which share each makes the makespan shorter.
        state: (L,) int64, of which state the move is; any numbers.
        sharpness: how many temperatures the best gain of a state is.
        least: temperature at least.
    """
    _, state = state.unique(return_inverse=True)
    best = scatter(gain.clamp(min=0.0), state, reduce="max")
    wanted = softmax(gain / (best / sharpness).clamp(min=least)[state], state)
    top = scatter(logits.detach(), state, reduce="max")[state]
    total = scatter((logits - top).exp(), state)
    return (wanted * (total.log()[state] - (logits - top))).sum() / len(best)
