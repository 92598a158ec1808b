"""Placing one graph as in the Placeto paper: the policy visits the nodes in a fixed order and places each in turn.

Legend: B episodes, T = G moves of a traversal, D devices, F features of a group.
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
from placeto.policies.placer import LearnedPlacer, trained_devices
from placeto.policies.placeto_paper import PlacetoPaperPolicy, Surroundings
from placeto.problem.problem import PlacementProblem
from placeto.simulator.evaluator import Evaluator, PlacementResult


@dataclass(frozen=True, eq=False)
class Traversed:
    """B episodes that have visited all groups."""

    end: WalkState
    features: Tensor  # (T, B, G, F) before each move
    current: Tensor  # (T,) int64, the group that it was about
    action: Tensor  # (T, B) int64
    makespan: Tensor  # (T+1, B) float32, relative to the best single device


class TraversalPlacer(LearnedPlacer):
    """A trained policy of the paper's traversal as a placer: the best placement that its traversals meet.

    All of them begin where it was trained to begin, at a random placement that is the same at every call. The first
    one takes the most likely devices and is the answer where there is no budget. Within a budget others follow, drawn
    from the policy. A visit that moves a node is one simulation.
    """

    name = "placeto-paper"

    def __init__(self, policy: PlacetoPaperPolicy, most_devices: float = math.inf) -> None:
        self.policy, self.most_devices = policy.eval(), most_devices

    def place(
        self, problem: PlacementProblem, simulations: int | None, seconds: float | None, seed: int, began: float
    ) -> PlacementResult:
        """Traversals within a budget; see the class."""
        walk = Walk(make_instance(problem))
        evaluator = Evaluator(problem, walk.instance.groups, simulations, seconds, began)
        score, spent = evaluator.score(walk.random_start()), -1
        if problem.num_devices > 1 and score > 0 and not evaluator.exhausted:
            around, random = Surroundings.of(walk), torch.Generator().manual_seed(seed)
            self._traverse(walk, around, evaluator, None)
            while not evaluator.exhausted and (simulations is not None or seconds is not None):
                if evaluator.simulations == spent:
                    break  # a policy that is sure to move nothing would go on for ever
                spent = evaluator.simulations
                self._traverse(walk, around, evaluator, random)
        return evaluator.result()

    def _traverse(self, walk: Walk, around: Surroundings, evaluator: Evaluator, random: torch.Generator | None) -> None:
        """Visit every node once, choosing the most likely devices, or by chance."""
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
    """Visit each group once, in `count` episodes from the paper's start.

    Args:
        policy: decides where each group goes.
        walk: of the graph.
        around: of the same graph.
        count: B.
        noise: (T, B, D) of the exponential law, to draw devices by; None = the most likely ones.
        lap: told when a part is over, "simulation" or "network".
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
    """Devices (B,) for the current group of B states with features (B, G, F).

    The most likely ones, or drawn by noise (B, D) of the exponential law.
    """
    with torch.no_grad():
        logits = policy(features, torch.full((len(features),), current), around)
    return logits.argmax(-1) if noise is None else (logits - noise.log()).argmax(-1)


def traversal_placer(checkpoint: Mapping[str, Any], policy: PlacetoPaperPolicy) -> TraversalPlacer:
    """A placer from a checkpoint and a policy of its config, with the parameters that validated best."""
    policy.load_state_dict(checkpoint["best_parameters"])
    return TraversalPlacer(policy, trained_devices(checkpoint))
