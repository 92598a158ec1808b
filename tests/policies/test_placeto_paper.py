import numpy as np
import pytest
import torch

from placeto.environment.instance import InstanceBatch, make_instance
from placeto.environment.mdp import reset
from placeto.policies.base import PolicyError
from placeto.policies.placeto_paper import PlacetoPaperConfig, PlacetoPaperPolicy
from placeto.problem.problem import PlacementProblem
from placeto.training.config import PAPER_ENV
from tests.toys import random_graph, toy_cluster


@pytest.fixture(scope="module")
def batch():
    problems = [PlacementProblem(random_graph(s, 15 + 5 * s), toy_cluster(2 + s)) for s in range(2)]
    return InstanceBatch.of([make_instance(p) for p in problems])


def observation(batch, index):
    random = np.random.default_rng(0)
    placement = np.stack([random.integers(batch.num_devices[i], size=batch.max_groups) for i in index])
    return reset(batch, PAPER_ENV, np.array(index), placement).data


def test_episodes_of_a_batch_do_not_influence_one_another(batch):
    torch.manual_seed(0)
    policy = PlacetoPaperPolicy(PlacetoPaperConfig())
    both, alone = observation(batch, [0, 1]), observation(batch, [0])
    logits, change = policy(both)
    assert logits.shape == change.shape == (len(both.batch), 3)
    assert logits.std() > 0
    torch.testing.assert_close(logits[both.batch == 0][:, :2], policy(alone)[0], atol=1e-5, rtol=1e-4)


def test_it_sees_the_features_of_the_paper_and_the_placement_alone(batch):
    torch.manual_seed(0)
    policy, data = PlacetoPaperPolicy(PlacetoPaperConfig()), observation(batch, [1])
    before = policy(data)[0]
    data.pair, data.edge_attr = torch.randn_like(data.pair), torch.randn_like(data.edge_attr)
    assert torch.equal(policy(data)[0], before)
    data.x.requires_grad_()
    (gradient,) = torch.autograd.grad(policy(data)[0].abs().sum(), data.x)
    assert gradient.any(0).sum() == 4
    data.current = (data.current + 1) % 3
    assert not torch.allclose(policy(data)[0], before)


def test_more_devices_than_the_head_has_are_refused(batch):
    policy = PlacetoPaperPolicy(PlacetoPaperConfig(devices=2))
    with pytest.raises(PolicyError, match=r"made for 2 devices at most, the cluster has 3: .*policy\.devices"):
        policy(observation(batch, [1]))
