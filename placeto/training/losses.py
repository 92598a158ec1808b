"""Returns, advantages, reward baselines, policy-gradient losses, and the loss of labelled moves: pure functions.

Legend: T steps of an episode, B episodes, L labelled moves of S states together.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch_geometric.utils import scatter, softmax

LEAST_DEVIATION = 1e-6
"""Advantages with a smaller standard deviation are rounding errors: rewards are float32 numbers of about 1."""


@dataclass(frozen=True, eq=False)
class Advantages:
    """Rewards and advantages of an iteration: of T moves of B episodes, or of K placements of each of B graphs."""

    rewards: Tensor  # (T, B) or (B, K)
    returns: Tensor  # the same shape
    baseline: Tensor  # the same shape, or (B, 1)
    advantage: Tensor  # the same shape as the rewards

    def numbers(self) -> dict[str, float]:
        """Return means and standard deviations to log, by tensorboard tag."""
        return {
            "reward/mean": float(self.rewards.mean()),
            "return/mean": float(self.returns.mean()),
            "return/std": float(self.returns.std(unbiased=False)),
            "baseline/mean": float(self.baseline.mean()),
            "advantage/mean": float(self.advantage.mean()),
            "advantage/std": float(self.advantage.std(unbiased=False)),
        }


def discounted_returns(rewards: Tensor, discount: float) -> Tensor:
    """Return the discounted sum of the rewards from each step on: (T, B) -> (T, B).

    >>> discounted_returns(torch.tensor([[1.0], [0.0], [2.0]]), 0.5).flatten().tolist()
    [1.5, 1.0, 2.0]
    """
    returns = torch.empty_like(rewards)
    running = torch.zeros_like(rewards[0])
    for t in range(len(rewards) - 1, -1, -1):
        running = rewards[t] + discount * running
        returns[t] = running
    return returns


def replica_advantages(returns: Tensor, graph: Tensor) -> Tensor:
    """Subtract from each return the mean return at the same step of the episodes with the same graph and start.

    Args:
        returns: (T, B).
        graph: (B,) int64, small numbers, equal for episodes with the same graph and start.

    Returns:
        (T, B) advantages.
    """
    return returns - scatter(returns, graph, dim=1, reduce="mean")[:, graph]


def step_baseline(history: Tensor, returns: Tensor, rounds: int) -> tuple[Tensor, Tensor]:
    """Compute the reward baseline of the Placeto paper (section 3.3) for one graph.

    It is the mean return at each step over the last rounds. As in the paper's code, the present round is one of them.

    Args:
        history: (R, T) mean returns of R earlier rounds, the oldest first; R may be 0.
        returns: (T, B) returns of the present round's episodes.
        rounds: number of rounds in the mean, the present one included.

    Returns:
        The baseline (T,), and the new history (R, T), which ends with the present round.
    """
    history = torch.cat([history, returns.mean(1)[None]])[-rounds:]
    return history.mean(0), history


def normalise(advantages: Tensor) -> Tensor:
    """Divide advantages by their standard deviation. Their mean isn't subtracted; this is left to the reward baseline.

    If the standard deviation is at most `LEAST_DEVIATION`, the result is 0: dividing would turn rounding errors of 6e-8
    into advantages of up to 6.

    >>> normalise(torch.tensor([6e-8, 6e-8, 0.0])).tolist()
    [0.0, 0.0, 0.0]
    """
    deviation = advantages.std(unbiased=False)
    return advantages / (deviation + 1e-8) if deviation > LEAST_DEVIATION else torch.zeros_like(advantages)


def reinforce_loss(log_prob: Tensor, advantages: Tensor, entropy: Tensor, entropy_weight: float) -> Tensor:
    """Return the loss of REINFORCE (Williams 1992).

    It is minus the mean of log-probability x advantage, less `entropy_weight` times the mean entropy.
    """
    return -(log_prob * advantages).mean() - entropy_weight * entropy.mean()


def ppo_loss(
    log_prob: Tensor, old_log_prob: Tensor, advantages: Tensor, entropy: Tensor, clip: float, entropy_weight: float
) -> Tensor:
    """Return the loss of PPO (Schulman et al. 2017, arXiv 1707.06347).

    It is minus the mean of the clipped surrogate, less `entropy_weight` times the mean entropy.

    >>> one, up = torch.zeros(1), torch.full((1,), 1.0)
    >>> round(float(ppo_loss(up, one, torch.ones(1), one, clip=0.2, entropy_weight=0.0)), 3)
    -1.2
    """
    ratio = (log_prob - old_log_prob).exp()
    surrogate = torch.minimum(ratio * advantages, ratio.clamp(1 - clip, 1 + clip) * advantages)
    return -surrogate.mean() - entropy_weight * entropy.mean()


def policy_change(log_prob: Tensor, old_log_prob: Tensor, clip: float) -> tuple[float, float]:
    """Return the divergence of a policy from the old one, in nats a decision, and the share of clipped ratios.

    The divergence is estimated from decisions of the old policy: it is the mean of r - 1 - log r over the ratios r.
    This estimate has no bias and is never negative (Schulman, "Approximating KL Divergence", 2020).

    >>> policy_change(torch.log(torch.tensor([0.5, 2.0])), torch.zeros(2), 0.6)
    (0.25, 0.5)
    """
    log_ratio = (log_prob - old_log_prob).detach()
    ratio = log_ratio.exp()
    return float((ratio - 1.0 - log_ratio).mean()), float(((ratio - 1.0).abs() > clip).float().mean())


def listwise_loss(logits: Tensor, gain: Tensor, state: Tensor, sharpness: float, least: float) -> Tensor:
    """Compare the policy's probabilities of each state's moves with the softmax of their exact gains.

    Returns the cross-entropy in nats, a mean over states. The moves that gain most count most: the probability that the
    loss favours for a move falls exponentially with its distance from the best gain of the state. After ListNet: Cao et
    al., "Learning to Rank: From Pairwise Approach to Listwise Approach", ICML 2007.

    Args:
        logits: (L,) logits of the moves.
        gain: (L,) share of the makespan by which each move makes it shorter.
        state: (L,) int64, the state of each move; any numbers.
        sharpness: the temperature of the softmax is the best gain of the state divided by this number.
        least: smallest temperature.
    """
    _, state = state.unique(return_inverse=True)
    best = scatter(gain.clamp(min=0.0), state, reduce="max")
    wanted = softmax(gain / (best / sharpness).clamp(min=least)[state], state)
    top = scatter(logits.detach(), state, reduce="max")[state]
    total = scatter((logits - top).exp(), state)
    return (wanted * (total.log()[state] - (logits - top))).sum() / len(best)
