"""Learning of the Placeto paper's policy."""

import os
import signal
from dataclasses import replace

import numpy as np
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from placeto.environment.instance import make_instance
from placeto.environment.walk import Walk
from placeto.placers import load_placer
from placeto.plumbing.signals import Interruption
from placeto.policies.placeto_paper import PlacetoPaperConfig, PlacetoPaperPolicy, Surroundings
from placeto.policies.traversal import traverse
from placeto.simulator.schedule import simulate
from placeto.training.checkpoint import load_checkpoint
from placeto.training.config import TraversalLearningConfig, TraversalTrainConfig
from placeto.training.learners.learner import Run
from placeto.training.learners.traversal import REWARD_UNIT, TraversalLearner, advantages, backward
from placeto.training.trainer import train
from tests.toys import two_kinds
from tests.training.test_trainer import problems, same


def config(out, **changes):
    policy, learning = PlacetoPaperConfig(devices=2), TraversalLearningConfig(episodes=3)
    return replace(TraversalTrainConfig(str(out), policy=policy, learning=learning, iterations=4), **changes)


def test_advantages_by_hand():
    """Two moves of two episodes: rewards are drops in tenths of one device, returns are discounted."""
    makespan, history = torch.tensor([[1.0, 1.0], [0.9, 1.0], [0.5, 1.1]]), {}
    worth = advantages(makespan, TraversalLearningConfig(discount=0.5, baseline_rounds=2), history, 7)
    torch.testing.assert_close(worth.rewards, torch.tensor([[0.1, 0.0], [0.4, -0.1]]) / REWARD_UNIT)
    torch.testing.assert_close(worth.returns, torch.tensor([[3.0, -0.5], [4.0, -1.0]]))
    torch.testing.assert_close(worth.baseline[:, 0], torch.tensor([1.25, 1.5]))
    torch.testing.assert_close(worth.advantage, worth.returns - worth.baseline)
    for _ in range(3):
        advantages(makespan, TraversalLearningConfig(baseline_rounds=2), history, 7)
    assert history[7].shape == (2, 2)


def test_the_gradient_is_the_sum_over_decisions_however_they_are_batched(monkeypatch):
    walk, policy = Walk(make_instance(two_kinds(3, 2))), PlacetoPaperPolicy(PlacetoPaperConfig(devices=2))
    around = Surroundings.of(walk)
    noise = torch.empty(walk.num_groups, 4, 2).exponential_(generator=torch.Generator().manual_seed(0))
    episodes, advantage = traverse(policy, walk, around, 4, noise), torch.randn(walk.num_groups, 4)
    found = []
    for columns in (1, 10**6):
        monkeypatch.setattr("placeto.training.learners.traversal._COLUMNS", columns)
        policy.zero_grad()
        losses = backward(policy, around, episodes, advantage, 0.5)
        found.append((losses, [p.grad.clone() for p in policy.parameters()]))
    assert found[0][0] == pytest.approx(found[1][0], rel=1e-4)
    for one, other in zip(found[0][1], found[1][1], strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-3)
    by_hand, uncertainty = 0.0, 0.0
    for t in range(walk.num_groups):
        log_probs = policy(episodes.features[t], episodes.current[t].expand(4), around).log_softmax(-1)
        by_hand -= (log_probs[torch.arange(4), episodes.action[t]] * advantage[t]).sum().item()
        uncertainty -= (log_probs.exp() * log_probs).sum().item()
    assert found[0][0] == pytest.approx((by_hand - 0.5 * uncertainty, uncertainty), rel=1e-4)


def test_an_iteration_keeps_the_best_placement_met_and_counts_what_it_simulated(tmp_path):
    learner = TraversalLearner(Run(config(tmp_path), problems(1), problems(2, 10)))
    state = learner.initial_state()
    numbers = learner.iterate(state, 0.0)
    (problem,) = learner.problems.values()
    makespan = simulate(problem, state.elite[0]).makespan_us
    assert makespan / problem.single_device_us == pytest.approx(state.elite_score[0])
    assert numbers["makespan/episode_end"] >= numbers["makespan/episode_best"] >= state.elite_score[0] - 1e-6
    assert 3 < state.simulations < 3 * (learner.walks[0][0].num_groups + 1)
    before = {name: value.clone() for name, value in state.policy.state_dict().items()}
    one, other = learner.validate(state), learner.validate(state)
    np.testing.assert_array_equal(one.end, other.end)
    assert same(before, state.policy.state_dict())
    assert (one.end >= one.best_met).all()
    np.testing.assert_array_equal(one.judged, one.end)
    end, best = learner.validate_random()
    assert (end >= best).all()


def curves(out):
    events = EventAccumulator(str(out))
    events.Reload()
    tags = [tag for tag in events.Tags()["scalars"] if "seconds/" not in tag]
    return {tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in tags}


def test_a_run_that_goes_on_ends_as_one_that_was_not_interrupted(tmp_path):
    """One that ends in an iteration, after the last checkpoint, and one that a signal stops between two iterations."""

    def interrupt(done, note):
        if note.startswith("iteration 1"):
            raise KeyboardInterrupt
        if note.startswith("iteration 3"):
            os.kill(os.getpid(), signal.SIGTERM)

    run = problems(2), problems(1, 10)
    whole, parts = config(tmp_path / "whole", save_every=2), config(tmp_path / "parts", save_every=2)
    train(whole, *run)
    with pytest.raises(KeyboardInterrupt):
        train(parts, *run, report=interrupt)
    assert not (tmp_path / "parts" / "checkpoint.pt").exists()
    with pytest.raises(Interruption, match=r"^ended by SIGTERM: iteration 3 is saved in "):
        train(parts, *run, report=lambda done, note: interrupt(done, note.replace("iteration 1", "")))
    assert load_checkpoint(parts.out)["iteration"] == 3
    train(parts, *run, resume=True)
    one, other = load_checkpoint(whole.out), load_checkpoint(parts.out)
    assert same(one["parameters"], other["parameters"])
    assert one["simulations"] == other["simulations"]
    for folder in ("", "by-placements"):
        assert curves(tmp_path / "whole" / folder) == curves(tmp_path / "parts" / folder)


def test_the_papers_placeto_learns(tmp_path):
    """It learns to move what another device suits better; its checkpoint places graphs."""
    family = {f"{one}, {other}": two_kinds(one, other) for one, other in ((2, 2), (1, 2), (3, 2))}
    unseen = two_kinds(5, 4)
    run = config(tmp_path, iterations=150, validate_every=50, learning=TraversalLearningConfig())
    numbers = train(run, family, {"unseen": unseen})
    optimum = 50.0 / unseen.single_device_us  # .24
    assert numbers["validation/untrained_end"] > 0.6
    assert numbers["validation/random_end"] > 0.4
    assert optimum <= numbers["validation/kept"] < 0.4
    assert load_placer(tmp_path)(unseen).makespan_us / unseen.single_device_us < 0.4
