"""Placing one graph as in the Placeto paper: the policy visits the nodes in a fixed order and places each in turn.

Legend: B episodes, G groups (the nodes), T = G moves of a traversal, D devices, F features of a group.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import repeat
from typing import Any

import numpy as np
import torch
from torch import Tensor

from placeto.environment.instance import make_instance
from placeto.environment.walk import Walk, WalkState
from placeto.policies.learned_placer import LearnedPlacer, trained_devices
from placeto.policies.placeto_paper import PlacetoPaperPolicy, Surroundings
from placeto.problem.problem import PlacementProblem
from placeto.simulator.evaluator import Evaluator, PlacementResult


@dataclass(frozen=True, eq=False)
class Traversed:
    """B episodes that have visited all groups."""

    end: WalkState  # the state after the last move
    features: Tensor  # (T, B, G, F) float32, features of the groups before each move
    current: Tensor  # (T,) int64, the group that each move places
    action: Tensor  # (T, B) int64, the device that each move chooses
    makespan: Tensor  # (T+1, B) float32, relative to the best single device


class TraversalPlacer(LearnedPlacer):
    """The trained policy of the paper as a placer: the result is the best placement that its traversals meet.

    All traversals begin with the placement that its training begins with: a random one, the same at every call. The
    first traversal takes the most likely devices. It is the only one if there is no budget. Within a budget, further
    traversals follow, whose devices are drawn from the policy. The start is one simulation, and so is each visit that
    gives a node another device.
    """

    name = "placeto-paper"

    def __init__(self, policy: PlacetoPaperPolicy, most_devices: float = math.inf) -> None:
        self.policy, self.most_devices = policy.eval(), most_devices

    def place(
        self, problem: PlacementProblem, simulations: int | None, seconds: float | None, seed: int, began: float
    ) -> PlacementResult:
        """Place a graph by traversals within a budget; see the class."""
        walk = Walk(make_instance(problem))
        evaluator = Evaluator(problem, walk.instance.groups, simulations, seconds, began)
        score, spent = evaluator.score(walk.random_start()), -1
        if problem.num_devices > 1 and score > 0 and not evaluator.exhausted:
            around, random = Surroundings.of(walk), torch.Generator().manual_seed(seed)
            self._traverse(walk, around, evaluator, None)
            while not evaluator.exhausted and (simulations is not None or seconds is not None):
                if evaluator.simulations == spent:
                    break  # the last traversal moved nothing: a policy that is sure of that would go on for ever
                spent = evaluator.simulations
                self._traverse(walk, around, evaluator, random)
        return evaluator.result()

    def _traverse(self, walk: Walk, around: Surroundings, evaluator: Evaluator, random: torch.Generator | None) -> None:
        """Visit every node once, or as many as the budget allows.

        The devices are drawn from the policy with `random`, or are the most likely ones if `random` is None.
        """
        begin, noise = walk.begin(1, walk.random_start()), None
        if random is not None:
            noise = (torch.empty(1, walk.num_devices).exponential_(generator=random) for _ in range(walk.num_groups))
        before = begin.placement
        for *_, state in visits(self.policy, around, begin, noise):
            if not np.array_equal(before, state.placement):
                evaluator.score(state.placement[0])
            if evaluator.exhausted:
                return
            before = state.placement


def visits(
    policy: PlacetoPaperPolicy,
    around: Surroundings,
    state: WalkState,
    noise: Iterable[Tensor] | None = None,
    lap: Callable[[str], None] = lambda part: None,
) -> Iterator[tuple[Tensor, Tensor, WalkState]]:
    """Visit each group once; yield the features (B, G, F) that the policy reads, its devices (B,), and the next state.

    Args:
        policy: chooses the device of each group.
        around: what the policy reads of the graph.
        state: of B episodes, before the first visit.
        noise: T tensors (B, D) of draws from the exponential distribution of mean 1, by which devices are drawn from
            the policy; None = the most likely devices.
        lap: called at the end of each piece of work, with what it was: "simulation" or "network".
    """
    for draw in repeat(None, state.walk.num_groups) if noise is None else noise:
        seen = torch.from_numpy(state.features)
        lap("simulation")
        with torch.no_grad():
            logits = policy(seen, torch.full((len(seen),), state.current), around)
        device = (logits if draw is None else logits - draw.log()).argmax(-1)
        lap("network")
        state = state.move(device.numpy())
        yield seen, device, state


def traverse(
    policy: PlacetoPaperPolicy,
    walk: Walk,
    around: Surroundings,
    count: int,
    noise: Tensor | None = None,
    lap: Callable[[str], None] = lambda part: None,
) -> Traversed:
    """Return what `count` episodes of `visits` do from the start that all traversals of the graph have.

    Args:
        policy: as in `visits`.
        walk: the graph.
        around: as in `visits`.
        count: B.
        noise: (T, B, D), as in `visits`.
        lap: as in `visits`.

    Raises:
        PlacerError: the cluster has more devices than the policy was made for.
    """
    begin = walk.begin(count, walk.random_start())
    features, action, states = zip(*visits(policy, around, begin, noise, lap), strict=True)
    lap("simulation")
    spans = np.stack([state.makespan for state in (begin, *states)])
    current, makespan = torch.from_numpy(walk.order), torch.from_numpy(spans).float()
    return Traversed(states[-1], torch.stack(features), current, torch.stack(action), makespan)


def traversal_placer(checkpoint: Mapping[str, Any], policy: PlacetoPaperPolicy) -> TraversalPlacer:
    """Make a placer from a checkpoint and the policy with its parameters."""
    return TraversalPlacer(policy, trained_devices(checkpoint))
