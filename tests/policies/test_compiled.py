"""The compiled network against the torch policy."""

import numpy as np
import pytest
import torch

from placeto.environment.instance import InstanceBatch, make_instance
from placeto.environment.observation import observe
from placeto.environment.tensors import to_data
from placeto.policies.compiled import CompiledPolicy
from placeto.policies.placeto import PlacetoConfig, PlacetoPolicy
from placeto.problem.problem import PlacementProblem
from tests.toys import fork_of_chains, random_graph, toy_cluster


def problems() -> list[PlacementProblem]:
    clusters = toy_cluster(2), toy_cluster(3, (1.0, 2.0, 0.5)), toy_cluster(12)
    return [
        *(PlacementProblem(random_graph(seed, 20 + 30 * seed), clusters[seed % 3]) for seed in range(6)),
        fork_of_chains(3, 2),
        PlacementProblem(random_graph(7, 1), clusters[0]),  # no arcs
    ]


@pytest.mark.parametrize("config", [PlacetoConfig(rounds=2), PlacetoConfig(hidden=12, rounds=0), PlacetoConfig(7, 1)])
def test_it_answers_as_the_torch_policy_does(config: PlacetoConfig) -> None:
    policy = PlacetoPolicy(config)
    for parameter in policy.parameters():
        parameter.data += 0.2 * torch.randn_like(parameter)
    compiled, random = CompiledPolicy.of(policy), np.random.default_rng(0)
    largest = 0.0
    for problem in problems():
        batch = InstanceBatch.of([make_instance(problem)])
        shape = 1, batch.max_groups
        placement, visited = random.integers(problem.num_devices, size=shape), random.random(shape) < 0.3
        seen, _, _ = observe(batch, np.zeros(1, np.int64), placement, visited, visited.sum(1))
        with torch.no_grad():
            expected = policy(to_data(seen))[0].numpy()
        found = compiled(seen, seen.offered)
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())
        assert (found[np.arange(len(found)), seen.current] == 0.0).all()
        asked = random.random(found.shape) < 0.5
        some = compiled(seen, asked & seen.offered)
        np.testing.assert_allclose(some, np.where(asked, found, 0.0), rtol=1e-4, atol=1e-4 * np.abs(expected).max())
        largest = max(largest, float(np.abs(expected).max()))
    assert largest > 1.0
