import numpy as np
import pytest
import torch

from placeto.environment.rewards import PLACEMENT_REWARDS, at_the_end, best_so_far, improvement

EPISODE = torch.tensor([[1.0, 1.0], [1.3, 0.7], [0.9, 0.9], [0.95, 0.6]])


def test_improvement_rewards_sum_to_the_whole_drop():
    rewards = improvement(EPISODE)
    torch.testing.assert_close(rewards.sum(0), torch.tensor([0.05, 0.4]))
    assert rewards[1, 1].item() == pytest.approx(-0.2)


def test_best_so_far_rewards_never_punish_and_sum_to_the_best_drop():
    torch.testing.assert_close(best_so_far(EPISODE), torch.tensor([[0.0, 0.3], [0.1, 0.0], [0.0, 0.1]]))


def test_rewards_at_the_end_have_the_same_sum():
    rewards = at_the_end(EPISODE)
    assert not rewards[:-1].any()
    torch.testing.assert_close(rewards.sum(0), best_so_far(EPISODE).sum(0))


def test_shorter_placements_are_worth_more():
    worth = {name: reward(np.array([0.25, 1.0])).tolist() for name, reward in PLACEMENT_REWARDS.items()}
    assert worth == {"sqrt": [-0.5, -1.0], "log": [pytest.approx(np.log(4.0)), 0.0]}
