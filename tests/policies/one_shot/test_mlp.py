"""The control sees no graph."""

from dataclasses import replace

import torch

from placeto.policies.one_shot.inputs import make_input
from placeto.policies.one_shot.mlp import MlpConfig, MlpPolicy
from tests.cases import toy_problem


def test_a_unit_is_placed_by_what_it_is_whoever_its_neighbours_are() -> None:
    policy = MlpPolicy(MlpConfig(units="ops", hidden=16))
    graph = make_input(toy_problem(0, 40, 3), "ops")
    before = policy(graph)
    assert before.shape == (graph.num_units, 3)
    others = replace(graph, edges=graph.edges.flip(0), neighbours=-graph.neighbours, producers=graph.producers.flip(0))
    assert torch.equal(policy(others), before)
    features = graph.features.clone()
    features[7] += 1.0
    changed = (policy(replace(graph, features=features)) != before).any(1)
    assert changed.nonzero().flatten().tolist() == [7]
