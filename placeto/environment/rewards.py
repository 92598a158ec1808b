"""What the moves of an episode, or a whole placement, are worth to a policy that learns.

Legend: T moves of an episode, B episodes or graphs, K placements of a graph. Makespans are relative to the best single
device, penalised for memory.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, wraps
from importlib.metadata import EntryPoint
from typing import Any

import numpy as np
import torch
from torch import Tensor

from placeto.errors import PlacerError
from placeto.plumbing import extensions
from placeto.plumbing.extensions import described, load_extension, named_extensions, takes_one

Reward = Callable[[Tensor], Tensor]
"""A function from relative makespans (T+1, B) of episodes to the reward of each move (T, B)."""
PlacementReward = Callable[[np.ndarray], np.ndarray]
"""A function from relative makespans (B, K), of K placements of each of B graphs, to each placement's reward (B, K)."""


def improvement(makespan: Tensor) -> Tensor:
    """Drop of the makespan by each move, negative if it gets longer: (T+1, B) -> (T, B). The paper's, section 3.1.

    >>> improvement(torch.tensor([[1.0], [0.5], [0.75]])).flatten().tolist()
    [0.5, -0.25]
    """
    return makespan[:-1] - makespan[1:]


def best_so_far(makespan: Tensor) -> Tensor:
    """Drop of the best makespan met: a worse makespan before a better one costs nothing; (T+1, B) -> (T, B).

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


REWARDS: dict[str, Reward] = {
    "improvement": improvement,
    "best-so-far": best_so_far,
    "at-the-end": at_the_end,
}
"""Name -> reward of each move. `find_reward` also has those of other packages."""


def square_root(relative: np.ndarray) -> np.ndarray:
    """Minus the square root of the makespan of a whole placement: Mirhoseini et al. 2017, section 3.1."""
    return -np.sqrt(relative)


def logarithm(relative: np.ndarray) -> np.ndarray:
    """Minus the logarithm of the makespan of a whole placement: 1 % less is worth the same at any makespan."""
    return -np.log(relative)


PLACEMENT_REWARDS: dict[str, PlacementReward] = {
    "sqrt": square_root,
    "log": logarithm,
}
"""Name -> reward of each whole placement. `find_placement_reward` also has those of other packages."""


def reward_names() -> list[str]:
    """Names of all rewards of moves, those of other packages included.

    Raises:
        PlacerError: two packages have a reward of the same name, or one has a name of Placeto's.
    """
    return [*REWARDS, *_others(extensions.REWARDS)]


def placement_reward_names() -> list[str]:
    """Names of all rewards of whole placements, those of other packages included.

    Raises:
        PlacerError: two packages have a reward of the same name, or one has a name of Placeto's.
    """
    return [*PLACEMENT_REWARDS, *_others(extensions.PLACEMENT_REWARDS)]


@cache
def find_reward(name: str) -> Reward:
    """Find a reward of moves by its name.

    A reward of another package raises an PlacerError when it returns anything else than finite floats (T, B).

    Raises:
        KeyError: there is no reward of this name.
        PlacerError: the package that has the reward can't be used.
    """
    return REWARDS[name] if name in REWARDS else _load(extensions.REWARDS, name, 1)


@cache
def find_placement_reward(name: str) -> PlacementReward:
    """Find a reward of whole placements by its name.

    A reward of another package raises an PlacerError when it returns anything else than finite floats (B, K).

    Raises:
        KeyError: there is no reward of this name.
        PlacerError: the package that has the reward can't be used.
    """
    return PLACEMENT_REWARDS[name] if name in PLACEMENT_REWARDS else _load(extensions.PLACEMENT_REWARDS, name, 0)


@cache
def _others(group: str) -> dict[str, EntryPoint]:
    return named_extensions(group, list(REWARDS if group == extensions.REWARDS else PLACEMENT_REWARDS))


def _load(group: str, name: str, moves: int) -> Callable[[Any], Any]:
    """Load a reward of another package; it is wrapped so that it raises an PlacerError for a wrong result.

    The result must be finite floats with the shape of the makespans without their first `moves` rows.
    """
    point = _others(group)[name]
    reward = load_extension(point)
    if not callable(reward):
        raise PlacerError(f"{described(point)}: is no function, but {reward!r:.60}")
    if not takes_one(reward):
        raise PlacerError(f"{described(point)}: must take one argument, the makespans")

    @wraps(reward)
    def checked(relative: Any) -> Any:
        copy = relative.clone() if isinstance(relative, Tensor) else relative.copy()  # which the function may change
        worth, expected = reward(copy), tuple(relative[moves:].shape)
        if not isinstance(worth, type(relative)) or worth.shape != expected:
            returned = tuple(worth.shape) if isinstance(worth, Tensor | np.ndarray) else type(worth).__name__
            raise PlacerError(
                f"{described(point)}: returns {returned} for makespans {tuple(relative.shape)}, it must be {expected}"
            )
        floats = worth.is_floating_point() if isinstance(worth, Tensor) else worth.dtype.kind == "f"
        if not floats or not (worth.isfinite() if isinstance(worth, Tensor) else np.isfinite(worth)).all():
            what = f"numbers of type {worth.dtype}" if not floats else "numbers that are not finite"
            raise PlacerError(f"{described(point)}: returns {what}, it must be finite floats")
        return worth

    return checked
