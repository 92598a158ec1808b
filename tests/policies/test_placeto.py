import numpy as np
import pytest
import torch

from placeto.environment.env_config import EnvConfig
from placeto.environment.instance import InstanceBatch, make_instance
from placeto.environment.mdp import reset
from placeto.policies.placeto import PlacetoConfig, PlacetoPolicy, two_scales
from tests.cases import toy_problem

VARIANTS = [PlacetoConfig(), PlacetoConfig(rounds=0)]


@pytest.fixture(scope="module")
def batch():
    problems = [toy_problem(s, 15 + 5 * s, 2 + s) for s in range(2)]
    return InstanceBatch.of([make_instance(p) for p in problems])


def observation(batch, index, seed=0):
    random = np.random.default_rng(seed)
    placement = np.stack([random.integers(batch.num_devices[i], size=batch.max_groups) for i in index])
    return reset(batch, EnvConfig(), np.array(index), placement).data


@pytest.mark.parametrize("config", VARIANTS)
def test_logits_are_relative_to_the_current_device(batch, config):
    data = observation(batch, [0, 1])
    logits, change = PlacetoPolicy(config)(data)
    assert logits.shape == change.shape == (len(data.batch), 3)
    rows = torch.arange(len(data.batch))
    assert not logits[rows, data.current].any()
    assert torch.isfinite(logits).all()
    assert logits.std() > 0


@pytest.mark.parametrize("config", VARIANTS)
def test_episodes_of_a_batch_do_not_influence_one_another(batch, config):
    policy = PlacetoPolicy(config)
    alone = observation(batch, [0])
    both = observation(batch, [0, 1])  # the first episode draws the same placement
    logits = policy(both)[0][both.batch == 0][:, :2]
    torch.testing.assert_close(logits, policy(alone)[0], atol=1e-5, rtol=1e-4)


def test_equal_devices_can_be_renamed():
    """Swapping the devices of a placement swaps the columns of the logits: nothing hangs on a device's number."""
    batch = InstanceBatch.of([make_instance(toy_problem(3, 25, 2))])
    random = np.random.default_rng(0)
    placement = random.integers(2, size=(1, batch.max_groups))
    policy = PlacetoPolicy(PlacetoConfig())
    there = reset(batch, EnvConfig(), np.array([0]), placement).data
    back = reset(batch, EnvConfig(), np.array([0]), 1 - placement).data
    torch.testing.assert_close(policy(there)[0], policy(back)[0].flip(1), atol=1e-4, rtol=1e-3)


def test_messages_carry_information_between_groups(batch):
    data = observation(batch, [0])
    data.x.requires_grad_()
    for rounds, reaches in ((0, False), (1, True)):
        policy = PlacetoPolicy(PlacetoConfig(rounds=rounds))
        neighbour, node = data.edge_index[:, 0].tolist()
        (gradient,) = torch.autograd.grad(policy(data)[0][node].abs().sum(), data.x)
        assert bool(gradient[neighbour].any()) is reaches


def test_a_thousandth_of_the_makespan_shows_on_the_fine_scale(batch):
    """Features come twice, small ones enlarged."""
    x = torch.tensor([[-0.2, 0.0, 0.001, 0.002, 1.0]])
    raw, fine = two_scales(x).chunk(2, -1)
    assert torch.equal(raw, x)
    assert (fine.diff() > 0).all()
    assert fine[0, 1] == 0.0
    assert float(fine[0, 3] - fine[0, 2]) > 40 * 0.001
    assert fine.abs().max() < 1.5
