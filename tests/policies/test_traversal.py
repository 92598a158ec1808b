import numpy as np
import pytest
import torch
from torch import nn

from placeto.environment.instance import make_instance
from placeto.environment.walk import CURRENT, Walk
from placeto.policies.placeto_paper import PlacetoPaperConfig, PlacetoPaperPolicy, Surroundings
from placeto.policies.traversal import TraversalPlacer, traverse, visits
from placeto.problem.grouping import group_ops
from placeto.simulator.schedule import simulate
from tests.cases import toy_problem


@pytest.fixture(scope="module")
def problem():
    return toy_problem(1, 30, 3)


def untrained():
    torch.manual_seed(0)
    return PlacetoPaperPolicy(PlacetoPaperConfig(devices=3))


class ToTheFirst(nn.Module):
    """Wants every node on device 0."""

    def __init__(self, devices):
        super().__init__()
        self.devices, self.asked = devices, []

    def forward(self, features, current, around):
        assert features[:, current[0], CURRENT].all()
        self.asked += current.tolist()
        logits = torch.zeros(len(features), self.devices)
        logits[:, 0] = 50.0
        return logits


def test_without_a_budget_it_answers_after_one_traversal(problem):
    result = TraversalPlacer(untrained())(problem)
    walk = Walk(make_instance(problem))
    end = traverse(untrained(), walk, Surroundings.of(walk), 1).end
    assert result.simulations == end.simulated
    assert result.makespan_us == simulate(problem, result.placement).makespan_us
    assert result.makespan_us == pytest.approx(end.best[0] * problem.single_device_us)


def test_a_budget_is_spent_on_traversals_and_kept(problem):
    for budget in (1, 10, 200):
        result = TraversalPlacer(untrained())(problem, simulations=budget)
        assert result.simulations == budget
    again = TraversalPlacer(untrained())(problem, simulations=budget)
    np.testing.assert_array_equal(result.placement, again.placement)
    assert TraversalPlacer(untrained())(problem, seconds=0.2).seconds < 2.0


def test_it_visits_every_node_once_and_goes_where_the_policy_says():
    """The last placement of the traversal has all on device 0, the best of all where transfers take long."""
    problem = toy_problem(0, 20, 2)
    policy = ToTheFirst(2)
    result = TraversalPlacer(policy)(problem)
    assert sorted(policy.asked) == list(range(group_ops(problem).num_groups)), "one node at a time, each once"
    assert result.makespan_us <= problem.single_device_us


def test_devices_are_drawn_as_likely_as_the_policy_says():
    class Fixed(nn.Module):
        def forward(self, features, current, around):
            return torch.tensor([0.5, 0.3, 0.2]).log().expand(len(features), 3)

    walk = Walk(make_instance(toy_problem(0, 2, 3)))
    state = walk.begin(20_000, walk.random_start())
    noise = torch.empty(1, 20_000, 3).exponential_(generator=torch.Generator().manual_seed(0))
    ((_, drawn, _),) = visits(Fixed(), None, state, noise)
    torch.testing.assert_close(drawn.bincount() / 20_000, torch.tensor([0.5, 0.3, 0.2]), atol=0.015, rtol=0)
    _, likely, _ = next(visits(Fixed(), None, state))
    assert not likely.any()


def test_a_traversal_has_what_is_learned_from(problem):
    walk = Walk(make_instance(problem))
    groups = walk.num_groups
    noise = torch.empty(groups, 4, 3).exponential_(generator=torch.Generator().manual_seed(0))
    parts = []
    found = traverse(untrained(), walk, Surroundings.of(walk), 4, noise, parts.append)
    assert found.features.shape == (groups, 4, groups, 8)
    assert found.action.shape == (groups, 4)
    np.testing.assert_array_equal(found.current, walk.order)
    np.testing.assert_array_equal(found.end.placement[:, walk.order], found.action.T)
    np.testing.assert_allclose(found.makespan[-1], found.end.makespan, rtol=1e-6)
    assert set(parts) == {"simulation", "network"}
