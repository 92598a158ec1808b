import math

import torch
from torch_geometric.data import Data

from placeto.policies.pair_policy import PairDistribution


def observation() -> Data:
    """Two graphs of 2 and 1 nodes, two devices; each node may only move to the device it is not on."""
    data = Data()
    data.batch, data.local = torch.tensor([0, 0, 1]), torch.tensor([0, 1, 0])
    data.legal = torch.tensor([[False, True], [True, False], [True, True]])
    data.num_graphs, data.max_nodes = 2, 2
    return data


def test_illegal_and_missing_pairs_have_no_probability():
    logits = torch.tensor([[5.0, 1.0], [1.0, 9.0], [0.0, math.log(3.0)]])
    distribution = PairDistribution.from_logits(logits, observation())
    expected = torch.tensor([[0.0, 0.5, 0.5, 0.0], [0.25, 0.75, 0.0, 0.0]])
    torch.testing.assert_close(distribution.log_probs.exp(), expected)
    assert distribution.mode().tolist()[1] == 1


def test_samples_are_those_of_multinomial():
    distribution = PairDistribution.from_logits(torch.tensor([[0.0, 1.0], [1.0, 0.0], [0.0, 0.3]]), observation())
    one, other = (torch.Generator().manual_seed(3) for _ in range(2))
    for _ in range(50):
        drawn = torch.multinomial(distribution.log_probs.exp(), 1, generator=one)[:, 0]
        assert torch.equal(distribution.sample(torch.empty(2, 4).exponential_(generator=other)), drawn)


def test_entropy_and_log_prob_in_closed_form():
    logits = torch.zeros(3, 2)
    distribution = PairDistribution.from_logits(logits, observation())
    torch.testing.assert_close(distribution.entropy(), torch.full((2,), math.log(2.0)))
    torch.testing.assert_close(distribution.log_prob(torch.tensor([1, 0])), torch.full((2,), -math.log(2.0)))


def test_a_low_temperature_sharpens():
    logits = torch.tensor([[0.0, 1.0], [1.1, 0.0], [0.0, 1.0]])
    cold = PairDistribution.from_logits(logits, observation(), temperature=0.01)
    torch.testing.assert_close(cold.log_probs.exp().max(-1).values, torch.ones(2), atol=1e-4, rtol=0)


def test_gradients_stay_finite_beside_illegal_pairs():
    logits = torch.zeros(3, 2, requires_grad=True)
    distribution = PairDistribution.from_logits(logits, observation())
    (distribution.entropy().sum() + distribution.log_prob(torch.tensor([1, 0])).sum()).backward()
    assert torch.isfinite(logits.grad).all()
