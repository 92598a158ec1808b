"""What the moves of an episode, or a whole placement, are worth to a policy that learns.

Legend: T moves of an episode, B episodes. Makespans are relative to the best single device, penalised for memory.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor


def improvement(makespan: Tensor) -> Tensor:
    """Drop of the makespan by each move, negative where it made it worse: (T+1, B) -> (T, B). The paper's, section 3.1.

    >>> improvement(torch.tensor([[1.0], [0.5], [0.75]])).flatten().tolist()
    [0.5, -0.25]
    """
    return makespan[:-1] - makespan[1:]


def best_so_far(makespan: Tensor) -> Tensor:
    """Drop of the best makespan met: a worsening on the way to something better costs nothing; (T+1, B) -> (T, B).

    >>> best_so_far(torch.tensor([[1.0], [1.5], [0.75]])).flatten().tolist()
    [0.0, 0.25]
    """
    return (torch.cummin(makespan, 0).values[:-1] - makespan[1:]).clamp(min=0)


def at_the_end(makespan: Tensor) -> Tensor:
    """Drop to the best makespan met, all of it paid at the last move: (T+1, B) -> (T, B).

    The paper's ablation without intermediate rewards (section 4.3).

    >>> at_the_end(torch.tensor([[1.0], [0.5], [0.75]])).flatten().tolist()
    [0.0, 0.5]
    """
    rewards = best_so_far(makespan)
    late = torch.zeros_like(rewards)
    late[-1] = rewards.sum(0)
    return late


REWARDS: dict[str, Callable[[Tensor], Tensor]] = {
    "improvement": improvement,
    "best-so-far": best_so_far,
    "at-the-end": at_the_end,
}
"""Name -> reward of each move."""


def square_root(relative: np.ndarray) -> np.ndarray:
    """Minus the square root of the makespan of a whole placement: Mirhoseini et al. 2017, section 3.1."""
    return -np.sqrt(relative)


def logarithm(relative: np.ndarray) -> np.ndarray:
    """Minus the logarithm of the makespan of a whole placement: a per cent less is worth as much everywhere."""
    return -np.log(relative)


def linear(relative: np.ndarray) -> np.ndarray:
    """Minus the makespan of a whole placement."""
    return -relative


PLACEMENT_REWARDS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "sqrt": square_root,
    "log": logarithm,
    "linear": linear,
}
"""Name -> reward of each whole placement."""
