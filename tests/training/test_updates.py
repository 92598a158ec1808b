from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest
import torch

from placeto.environment.env_config import EnvConfig
from placeto.environment.instance import InstanceBatch, make_instance
from placeto.environment.mdp import reset
from placeto.policies.pair_policy import PairDistribution
from placeto.policies.placeto import PlacetoConfig, PlacetoPolicy
from placeto.training.config import LearningConfig, OneShotLearningConfig
from placeto.training.losses import normalise
from placeto.training.rollout import DivergedError, greedy_pass, rollout
from placeto.training.updates import (
    RANKING,
    SMALL_CHANGE,
    Scored,
    advantages,
    gradient_step,
    policy_update,
    supervised_update,
)
from tests.cases import toy_problem
from tests.parts import Parts


@pytest.fixture
def setting():
    policy = PlacetoPolicy(PlacetoConfig())
    batch = InstanceBatch.of([make_instance(toy_problem(0, 20, 2))])
    state = reset(batch, EnvConfig(tolerance=None), np.zeros(4, np.int64), np.zeros((4, batch.max_groups), np.int64))
    episodes = rollout(policy, batch, EnvConfig(tolerance=None), state, 8, torch.Generator().manual_seed(0), labels=10)
    return policy, torch.optim.Adam(policy.parameters(), lr=1e-3), episodes


def test_supervised_updates_fit_the_labels(setting):
    policy, optimizer, episodes = setting
    states = list(zip(episodes.data, episodes.labels, strict=True))
    first = supervised_update(policy, optimizer, states, LearningConfig())
    for _ in range(60):
        last = supervised_update(policy, optimizer, states, LearningConfig())
    assert last["loss/label_error"] < 0.6 * first["loss/label_error"]


@pytest.mark.slow
def test_the_odds_of_the_best_moves_are_learned_beside_the_changes(setting, monkeypatch):
    policy, _, episodes = setting
    states, found = list(zip(episodes.data, episodes.labels, strict=True)), []
    for weight in (0.0, RANKING):
        monkeypatch.setattr("placeto.training.updates.RANKING", weight)
        learner = deepcopy(policy)
        optimizer = torch.optim.Adam(learner.parameters(), lr=1e-3)
        found.append([supervised_update(learner, optimizer, states, LearningConfig()) for _ in range(40)][-1])
    without, with_odds = (numbers["loss/ranking"] for numbers in found)
    assert with_odds < without - 0.03


def scored_by(policy, episodes, t, advantage):
    """What a policy says of the moves that all episodes made at one time."""
    distribution = PairDistribution.from_logits(policy(episodes.data[t])[0], episodes.data[t])
    log_prob = distribution.log_prob(episodes.action[t])
    return Scored(log_prob, episodes.log_prob[t], advantage, distribution.entropy(), 1.0)


@pytest.mark.parametrize("config", [LearningConfig(lr=3e-3), OneShotLearningConfig(algorithm="reinforce", lr=3e-3)])
def test_policy_updates_raise_the_probability_of_what_turned_out_well(setting, config):
    policy, optimizer, episodes = setting
    advantage = torch.zeros(8, 4)
    advantage[0, 0], advantage[0, 1] = 1.0, -1.0
    if torch.equal(episodes.action[0, 0], episodes.action[0, 1]):
        pytest.fail("choose another seed: the two episodes begin with the same move")

    def scored(t):
        return scored_by(policy, episodes, t, normalise(advantage)[t])

    before, random, sizes = scored(0).log_prob.detach(), np.random.default_rng(0), []

    def score(minibatch):
        sizes.append(len(minibatch))
        return map(scored, minibatch)

    for _ in range(3):
        policy_update(policy, optimizer, 8, score, config, random, entropy=0.0)
    after = scored(0).log_prob.detach()
    assert sizes == ([8, 8] * 3 if config.algorithm == "ppo" else [8] * 3), "REINFORCE uses what it met once"
    assert after[0] > before[0]
    assert after[1] < before[1]


def test_ppo_says_how_far_the_policy_moved_and_reinforce_has_not_moved(setting):
    """At a learning rate of zero not at all; at a high one ratios leave the clipping range."""
    _, _, episodes = setting
    found = []
    for lr in (0.0, 0.1):
        policy = deepcopy(setting[0])

        def score(minibatch, policy=policy):
            return (scored_by(policy, episodes, t, torch.tensor([1.0, -1.0, 0.5, 0.0])) for t in minibatch)

        optimizer, random = torch.optim.Adam(policy.parameters(), lr=lr), np.random.default_rng(0)
        found.append(policy_update(policy, optimizer, 8, score, LearningConfig(), random, entropy=0.5))
    still, moved = found
    assert still["policy/kl"] == pytest.approx(0.0, abs=1e-6)
    assert still["policy/clipped_share"] == 0.0
    assert moved["policy/kl"] > 0.01
    assert 0.0 < moved["policy/clipped_share"] < 1.0
    assert moved["policy/entropy_weight"] == 0.5
    reinforce = OneShotLearningConfig(algorithm="reinforce")
    paper = policy_update(policy, optimizer, 8, score, reinforce, random, entropy=0.0)
    assert not {"policy/kl", "policy/clipped_share"} & set(paper)


def test_replica_advantages_compare_episodes_of_one_graph(setting):
    _, _, episodes = setting
    worth = advantages(episodes.makespan, LearningConfig(), np.array([0, 0, 0, 0]))
    torch.testing.assert_close(worth.advantage.mean(1), torch.zeros(8), atol=1e-6, rtol=0)
    torch.testing.assert_close(worth.baseline + worth.advantage, worth.returns)
    best = torch.cummin(episodes.makespan, 0).values
    undiscounted = advantages(episodes.makespan, LearningConfig(discount=1.0), np.zeros(4, np.int64))
    torch.testing.assert_close(undiscounted.returns[0], best[0] - best[-1])
    torch.testing.assert_close(undiscounted.rewards.sum(0), best[0] - best[-1])
    assert (worth.returns <= undiscounted.returns + 1e-6).all()


def test_errors_of_small_changes_weigh_more(setting):
    """The same error costs three times as much at no change as at a change of twice `SMALL_CHANGE`."""
    _, _, episodes = setting
    labels, losses = episodes.labels[0], []
    for change in (0.0, 2 * SMALL_CHANGE):
        state = episodes.data[0], replace(labels, change=torch.full_like(labels.change, change))
        shifted = _Shifted(config=PlacetoConfig(), change=torch.nn.Parameter(torch.tensor(change + 0.01)))
        numbers = supervised_update(shifted, torch.optim.SGD(shifted.parameters(), 0.0), [state], LearningConfig())
        losses.append(numbers["loss/supervised"])
    assert losses[0] == pytest.approx(0.5)
    assert losses[0] == pytest.approx(3.0 * losses[1])


class _Shifted(Parts):
    """Predicts the same change for all."""

    def changes(self, data, slot, device):
        return self.change.expand(len(slot))


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_a_gradient_that_is_not_finite_changes_nothing(wrong):
    policy = torch.nn.Linear(2, 1)
    before = policy.weight.clone()
    policy(torch.tensor([1.0, wrong])).backward()
    with pytest.raises(DivergedError, match="the gradients are not finite"):
        gradient_step(policy, torch.optim.Adam(policy.parameters()), 1.0)
    assert torch.equal(policy.weight, before)


def test_answers_that_are_not_finite_are_no_moves(setting):
    policy = setting[0]
    torch.nn.init.constant_(policy.head[-1].weight, 3e38)
    batch = InstanceBatch.of([make_instance(toy_problem(0, 20, 2))])
    index, placement = np.zeros(1, np.int64), np.zeros((1, batch.max_groups), np.int64)
    with pytest.raises(DivergedError, match="the policy's answers are not finite"):
        rollout(policy, batch, EnvConfig(), reset(batch, EnvConfig(), index, placement), 2, torch.Generator())
    with pytest.raises(DivergedError, match="the policy's answers are not finite"):
        greedy_pass(policy, batch, EnvConfig(), index, placement)
