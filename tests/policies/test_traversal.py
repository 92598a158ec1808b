import numpy as np
import pytest
import torch
from torch import nn

from placeto.heuristics.local_search.starts import best_cheap
from placeto.policies.placeto_paper import PlacetoPaperConfig, PlacetoPaperPolicy
from placeto.policies.traversal import TraversalPlacer
from placeto.problem.grouping import group_ops
from placeto.problem.problem import PlacementProblem
from placeto.simulator.evaluator import Evaluator
from placeto.simulator.schedule import simulate
from placeto.training.config import PAPER_ENV
from tests.toys import random_graph, toy_cluster


@pytest.fixture(scope="module")
def problem():
    return PlacementProblem(random_graph(1, 30), toy_cluster(3))


def heuristics(problem):
    """What the best cheap start is worth, and what it takes."""
    evaluator = Evaluator(problem, group_ops(problem))
    best_cheap(evaluator)
    return evaluator.best_score, evaluator.simulations


def untrained():
    torch.manual_seed(0)
    return TraversalPlacer(PlacetoPaperPolicy(PlacetoPaperConfig(devices=3)), PAPER_ENV)


class ToTheFirst(nn.Module):
    """Wants every node on device 0."""

    def forward(self, data):
        logits = torch.zeros(data.offered.shape)
        logits[:, 0] = 50.0
        return logits, logits


def test_without_a_budget_it_answers_after_one_traversal(problem):
    score, spent = heuristics(problem)
    result = untrained()(problem)
    assert result.simulations == spent + group_ops(problem).num_groups
    assert result.makespan_us == simulate(problem, result.placement).makespan_us <= score


def test_a_budget_is_spent_on_traversals_and_kept(problem):
    groups, (_, spent) = group_ops(problem).num_groups, heuristics(problem)
    for budget in (spent, spent + groups // 2, spent + 3 * groups + 1):
        result = untrained()(problem, simulations=budget)
        assert result.simulations == budget
    again = untrained()(problem, simulations=budget)
    np.testing.assert_array_equal(result.placement, again.placement)
    assert untrained()(problem, seconds=0.2).seconds < 2.0


def test_it_visits_every_node_once_and_goes_where_the_policy_says():
    """The last placement of the traversal has all on device 0, the best of all where transfers take long."""
    problem = PlacementProblem(random_graph(0, 20), toy_cluster(2))
    visited = []

    class Watching(ToTheFirst):
        def forward(self, data):
            visited.append((data.legal.any(1).nonzero().flatten().tolist(), data.current.tolist()))
            return super().forward(data)

    TraversalPlacer(Watching(), PAPER_ENV)(problem)
    asked = [node for nodes, _ in visited for node in nodes]
    assert sorted(asked) == list(range(group_ops(problem).num_groups)), "one node at a time, each once"
    left = {node for node, device in enumerate(visited[-1][1]) if device != 0}
    assert left <= {asked[-1]}, "all that were asked before have moved"


def test_one_device_is_placed_on():
    problem = PlacementProblem(random_graph(0, 10), toy_cluster(1))
    assert TraversalPlacer(ToTheFirst(), PAPER_ENV)(problem, simulations=50).makespan_us == problem.single_device_us
