"""Episodes in which the policy picks the node as well; those of a fixed order are in test_traversal.py."""

import numpy as np
import torch
from torch import nn

from placeto.environment.columns import PAIR
from placeto.environment.env_config import EnvConfig
from placeto.heuristics.local_search.starts import best_cheap
from placeto.policies.episodic import EpisodePlacer
from placeto.problem.grouping import group_ops
from placeto.simulator.evaluator import Evaluator
from placeto.simulator.schedule import simulate
from tests.cases import toy_problem

PROBLEM = toy_problem(1, 60, 4)


class Gain(nn.Module):
    """Wants the moves after which critical ops finish earliest."""

    def forward(self, data):
        logits = data.pair[..., PAIR.gain] * 20
        return logits, torch.zeros_like(logits)


def test_budgets_are_kept_and_runs_repeat_themselves() -> None:
    evaluator = Evaluator(PROBLEM, group_ops(PROBLEM))
    best_cheap(evaluator)
    cheap, groups = evaluator.simulations, group_ops(PROBLEM).num_groups
    place = EpisodePlacer(Gain(), EnvConfig(), "gain")
    assert place(PROBLEM).simulations == cheap + groups
    for budget in (cheap, cheap + groups // 2, cheap + 2 * groups + 1):
        result = place(PROBLEM, simulations=budget, seed=4)
        assert (result.simulations, result.placer) == (budget, "gain")
        assert result.makespan_us == simulate(PROBLEM, result.placement).makespan_us <= evaluator.best_score
    again = place(PROBLEM, simulations=budget, seed=4)
    np.testing.assert_array_equal(result.placement, again.placement)
    assert result.makespan_us < evaluator.best_score, "such moves are worth something"
