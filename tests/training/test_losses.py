import math

import pytest
import torch

from placeto.training.losses import (
    discounted_returns,
    listwise_loss,
    normalise,
    policy_change,
    ppo_loss,
    reinforce_loss,
    replica_advantages,
    step_baseline,
)


def test_discounted_returns_closed_form():
    rewards = torch.ones(5, 2)
    returns = discounted_returns(rewards, 0.9)
    expected = torch.tensor([(1 - 0.9**k) / 0.1 for k in (5, 4, 3, 2, 1)])
    torch.testing.assert_close(returns[:, 0], expected)


def test_replica_advantages_have_zero_mean_within_each_graph():
    returns = torch.tensor([[1.0, 3.0, 10.0, 14.0]])
    advantages = replica_advantages(returns, torch.tensor([0, 0, 1, 1]))
    torch.testing.assert_close(advantages, torch.tensor([[-1.0, 1.0, -2.0, 2.0]]))


def test_step_baseline_is_the_mean_over_the_last_rounds_this_one_included():
    empty = torch.zeros(0, 2)
    baseline, history = step_baseline(empty, torch.tensor([[1.0, 3.0], [0.0, 2.0]]), 2)
    assert baseline.tolist() == [2.0, 1.0]
    baseline, history = step_baseline(history, torch.tensor([[9.0], [9.0]]), 2)
    assert baseline.tolist() == [5.5, 5.0]
    baseline, history = step_baseline(history, torch.tensor([[1.0], [1.0]]), 2)
    assert baseline.tolist() == [5.0, 5.0]
    assert history.tolist() == [[9.0, 9.0], [1.0, 1.0]]


def test_the_divergence_from_the_old_policy_is_estimated_without_bias():
    """Drawn from one of two laws, the mean of the estimates is the divergence in closed form."""
    old, new = torch.tensor([0.5, 0.3, 0.2]).log(), torch.tensor([0.4, 0.4, 0.2]).log()
    drawn = torch.multinomial(old.exp(), 100_000, replacement=True, generator=torch.Generator().manual_seed(0))
    kl, clipped = policy_change(new[drawn], old[drawn], 0.25)  # ratios 0.8, 1.33 and 1
    assert kl == pytest.approx(float((old.exp() * (old - new)).sum()), rel=0.02)
    assert clipped == pytest.approx(0.3, abs=0.01)
    assert policy_change(old, old, 0.1) == (0.0, 0.0)


def test_normalised_advantages_have_unit_spread():
    assert normalise(torch.tensor([1.0, 2.0, 3.0])).std(unbiased=False).item() == pytest.approx(1.0, abs=1e-6)


def test_rounding_errors_are_no_advantages():
    """Divided by their deviation, they were up to 6, where all episodes had ended alike."""
    for value in (0.7071, -1.3, 9.9):
        returns = torch.full((3, 14), value)
        group = torch.arange(14) % 2
        assert not normalise(replica_advantages(returns, group)).any()
    assert not normalise(torch.tensor([6e-8, -6e-8, 6e-8])).any()
    assert normalise(torch.tensor([6e-8, 6e-8, 1e-3])).any()


def test_reinforce_gradient_is_minus_advantage_times_score():
    logits = torch.zeros(2, requires_grad=True)
    log_prob = torch.log_softmax(logits, 0)[:1]
    reinforce_loss(log_prob, torch.tensor([2.0]), torch.zeros(1), 0.0).backward()
    torch.testing.assert_close(logits.grad, torch.tensor([-1.0, 1.0]))


@pytest.mark.parametrize(
    ("ratio", "advantage", "expected"), [(1.5, 1.0, -1.2), (0.5, 1.0, -0.5), (1.5, -1.0, 1.5), (0.5, -1.0, 0.8)]
)
def test_ppo_clips_only_what_would_gain(ratio, advantage, expected):
    loss = ppo_loss(torch.tensor([math.log(ratio)]), torch.zeros(1), torch.tensor([advantage]), torch.zeros(1), 0.2, 0)
    assert loss.item() == pytest.approx(expected)


def test_entropy_bonus_lowers_the_loss():
    with_bonus = ppo_loss(torch.zeros(1), torch.zeros(1), torch.zeros(1), torch.tensor([2.0]), 0.2, 0.1)
    assert with_bonus.item() == pytest.approx(-0.2)


def test_listwise_loss_is_least_where_the_odds_are_those_of_the_gains():
    gain, state = torch.tensor([0.03, 0.0, -0.2, 0.002, -0.001]), torch.tensor([4, 4, 4, 7, 7])
    temperature = torch.tensor([0.01, 0.01, 0.01, 0.001, 0.001])  # a third of the best, and the least
    right = (gain / temperature).requires_grad_()
    least = listwise_loss(right, gain, state, 3.0, 1e-3)
    entropy = [-(p * p.log()).sum() for p in (torch.softmax(part, 0) for part in right.detach().split([3, 2]))]
    assert least.item() == pytest.approx(float(sum(entropy)) / 2)
    least.backward()
    torch.testing.assert_close(right.grad, torch.zeros(5), atol=1e-6, rtol=0)
    shifted = right.detach() + torch.tensor([9.0, 9.0, 9.0, -9.0, -9.0])
    assert listwise_loss(shifted, gain, state, 3.0, 1e-3).item() == pytest.approx(least.item(), rel=1e-5)
    swapped = right.detach()[[1, 0, 2, 4, 3]]
    assert listwise_loss(swapped, gain, state, 3.0, 1e-3) > least + 1.0


def test_listwise_loss_of_far_apart_odds_is_finite():
    logits = torch.tensor([0.0, 400.0], requires_grad=True)
    loss = listwise_loss(logits, torch.tensor([0.1, -0.1]), torch.zeros(2, dtype=torch.int64), 3.0, 1e-3)
    loss.backward()
    assert loss.item() == pytest.approx(400.0, rel=0.01)
    assert logits.grad[0] < -0.9
