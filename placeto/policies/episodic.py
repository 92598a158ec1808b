"""Placing one graph with any iterative policy, by episodes of the placement MDP."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

from placeto.environment.env_config import EnvConfig
from placeto.environment.instance import InstanceBatch, make_instance
from placeto.environment.mdp import reset, step
from placeto.heuristics.local_search.starts import best_cheap
from placeto.policies.learned_placer import LearnedPlacer
from placeto.policies.pair_policy import PairDistribution, answers
from placeto.problem.problem import PlacementProblem
from placeto.simulator.evaluator import Evaluator, PlacementResult


class EpisodePlacer(LearnedPlacer):
    """A trained iterative policy as a placer: the best placement of episodes from the best constructive placement.

    The first episode takes the most likely moves. It is the only one if there is no budget. Within a budget, further
    episodes from the same start follow, whose moves are drawn from the policy. An episode has as many moves as there
    are nodes, and each move is one simulation.

    Args:
        policy: maps observations to logits (V, D) and changes (V, D); see `placeto.environment.tensors.to_data`.
        env: order of the nodes, and which moves are taken back.
        name: name of the placer in its results.
    """

    def __init__(self, policy: nn.Module, env: EnvConfig, name: str = "") -> None:
        self.policy = policy.eval()
        self.env = env
        self.name = name

    def place(
        self, problem: PlacementProblem, simulations: int | None, seconds: float | None, seed: int, began: float
    ) -> PlacementResult:
        """Place a graph by episodes within a budget; see the class."""
        instance = make_instance(problem)
        evaluator = Evaluator(problem, instance.groups, simulations, seconds, began)
        start, score = best_cheap(evaluator, seed)
        if problem.num_devices > 1 and 0 < score < math.inf and not evaluator.exhausted:
            batch, random = InstanceBatch.of([instance]), torch.Generator().manual_seed(seed)
            self._traverse(batch, evaluator, start, None)
            while not evaluator.exhausted and (simulations is not None or seconds is not None):
                self._traverse(batch, evaluator, start, random)
        return evaluator.result()

    def _traverse(
        self, batch: InstanceBatch, evaluator: Evaluator, start: np.ndarray, random: torch.Generator | None
    ) -> None:
        """Run one episode from a placement (G,): as many moves as there are nodes, fewer if the budget ends before.

        The moves are drawn from the policy with `random`, or are the most likely ones if `random` is None.
        """
        state = reset(batch, self.env, np.zeros(1, np.int64), start[None])
        for _ in range(len(start)):
            if evaluator.exhausted:
                return
            with torch.no_grad():
                logits, _ = answers(self.policy, state.data)
            distribution = PairDistribution.from_logits(logits, state.data)
            if random is None:
                action = distribution.mode()
            else:
                noise = torch.empty(distribution.log_probs.shape).exponential_(generator=random)
                action = distribution.sample(noise)
            state = step(batch, self.env, state, action.numpy())
            evaluator.score(state.placement[0])


def episode_placer(checkpoint: Mapping[str, Any], policy: nn.Module) -> EpisodePlacer:
    """Make a placer from a checkpoint and a policy with its settings, with the parameters that were best in validation.

    Raises:
        RuntimeError: the parameters aren't those of the policy.
    """
    policy.load_state_dict(checkpoint["best_parameters"])
    return EpisodePlacer(policy, EnvConfig(**checkpoint["config"]["env"]), checkpoint["placer"])
