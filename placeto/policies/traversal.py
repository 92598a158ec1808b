"""Placing one graph as in the Placeto paper: the policy visits the nodes in a fixed order and places each in turn.

Legend: B episodes, G groups (the nodes), T = G moves of a traversal, D devices, F features of a group.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
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
        state = walk.begin(1, walk.random_start())
        for _ in range(walk.num_groups):
            if evaluator.exhausted:
                return
            noise = None
            if random is not None:
                noise = torch.empty(1, walk.num_devices).exponential_(generator=random)
            action = decide(self.policy, torch.from_numpy(state.features), state.current, around, noise)
            before, state = state, state.move(action.numpy())
            if not np.array_equal(before.placement, state.placement):
                evaluator.score(state.placement[0])


def traverse(
    policy: PlacetoPaperPolicy,
    walk: Walk,
    around: Surroundings,
    count: int,
    noise: Tensor | None = None,
    lap: Callable[[str], None] = lambda part: None,
) -> Traversed:
    """Visit each group once, in each of `count` episodes from the start that all traversals of the graph have.

    Args:
        policy: chooses the device of each group.
        walk: the graph.
        around: what the policy reads of the same graph.
        count: B.
        noise: (T, B, D) draws from the exponential distribution of mean 1, by which devices are drawn from the policy;
            None = the most likely devices.
        lap: called at the end of each piece of work, with what it was: "simulation" or "network".

    Raises:
        PlacerError: the cluster has more devices than the policy was made for.
    """
    state = walk.begin(count, walk.random_start())
    features, current, action, makespan = [], [], [], [state.makespan]
    for t in range(walk.num_groups):
        seen = torch.from_numpy(state.features)
        lap("simulation")
        device = decide(policy, seen, state.current, around, None if noise is None else noise[t])
        lap("network")
        features.append(seen)
        current.append(state.current)
        action.append(device)
        state = state.move(device.numpy())
        makespan.append(state.makespan)
    lap("simulation")
    spans = torch.from_numpy(np.stack(makespan)).float()
    return Traversed(state, torch.stack(features), torch.tensor(current), torch.stack(action), spans)


def decide(
    policy: PlacetoPaperPolicy, features: Tensor, current: int, around: Surroundings, noise: Tensor | None
) -> Tensor:
    """Choose devices (B,) int64 for the group `current` in B states with features (B, G, F).

    With noise (B, D), draws from the exponential distribution of mean 1, devices are drawn from the policy. Without
    noise they are the most likely ones.
    """
    with torch.no_grad():
        logits = policy(features, torch.full((len(features),), current), around)
    return logits.argmax(-1) if noise is None else (logits - noise.log()).argmax(-1)


def traversal_placer(checkpoint: Mapping[str, Any], policy: PlacetoPaperPolicy) -> TraversalPlacer:
    """Make a placer from a checkpoint and a policy with its settings, with the parameters that were best in validation.

    Raises:
        RuntimeError: the parameters aren't those of the policy.
    """
    policy.load_state_dict(checkpoint["best_parameters"])
    return TraversalPlacer(policy, trained_devices(checkpoint))
