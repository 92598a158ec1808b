"""The constructive policy: any devices, many samples and graphs at once, memory, what it learns on unseen graphs."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from placeto.placers import load_placer
from placeto.policies.one_shot.constructive import ConstructiveConfig, ConstructivePolicy
from placeto.policies.one_shot.inputs import UnitKind, make_input
from placeto.policies.one_shot.sampling import SamplingPlacer
from placeto.problem.problem import PlacementProblem
from placeto.training.config import OneShotTrainConfig, default_config
from placeto.training.learners.learner import Run
from placeto.training.learners.one_shot import OneShotLearner
from placeto.training.rollout import Stopwatch
from placeto.training.trainer import train
from tests.cases import toy_problem
from tests.toys import fork_of_chains, random_graph, toy_cluster

SMALL = ConstructiveConfig(units="ops", hidden=32)


def policy(rounds: int = 2) -> ConstructivePolicy:
    """An untrained network whose logits differ."""
    torch.manual_seed(0)
    made = ConstructivePolicy(replace(SMALL, rounds=rounds))
    made.soften(0.1)
    return made


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


@pytest.mark.parametrize("rounds", [0, 2])
def test_graphs_and_samples_side_by_side_are_placed_as_each_alone(rounds) -> None:
    made = policy(rounds)
    problems = [toy_problem(seed, ops, 3) for seed, ops in ((0, 40), (1, 7), (2, 25))] + [toy_problem(3, 12, 2)]
    graphs = [make_input(problem, "ops") for problem in problems]
    noise = [made.noise(graph, 4, generator()) for graph in graphs]
    for graph, (draw,), sample in zip(graphs, noise, made.decide(graphs, noise), strict=True):
        assert len(torch.unique(sample.placement, dim=0)) > 1
        for k in range(4):
            alone = made.decide([graph], [(draw[k : k + 1],)])[0]
            assert torch.equal(alone.placement[0], sample.placement[k])
            torch.testing.assert_close(alone.log_prob[0], sample.log_prob[k], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("devices", [2, 5, 16])
def test_devices_are_told_by_what_they_are_not_by_their_number(devices) -> None:
    """The devices of a cluster in another order get the same units, in any number of devices."""
    made, turned = policy(), np.random.default_rng(0).permutation(devices)
    speeds = [(0.5, 1.0, 1.5, 2.0, 4.0)[i % 5] for i in range(devices)]
    one, other = (
        make_input(toy_problem(0, 30, devices, speeds=tuple(speeds[i] for i in order)), "ops")
        for order in (range(devices), turned)
    )
    (draw,) = made.noise(one, 3, generator())
    first = made.decide([one], [(draw,)])[0]
    second = made.decide([other], [(draw[..., torch.from_numpy(turned)],)])[0]
    assert torch.equal(torch.from_numpy(turned)[second.placement], first.placement)
    assert set(first.placement.flatten().tolist()) <= set(range(devices))


def test_scores_know_what_lies_on_devices_and_what_fits() -> None:
    """Each input that a decision depends on changes the log-probabilities: time, transfers, delays, links, memory,
    profile."""
    made, problem = policy(), toy_problem(0, 20, 3)
    graph = make_input(problem, "ops")
    sample = made.sample(graph, 2, generator())
    full = replace(graph, memory=torch.ones_like(graph.memory))
    assert not torch.allclose(made.score(full, sample.action)[0], sample.log_prob, atol=1e-4)
    for name in ("time", "transfer", "delay", "links", "profile"):
        changed = replace(graph, **{name: getattr(graph, name).flip(0) * 1.5})
        assert not torch.allclose(made.score(changed, sample.action)[0], sample.log_prob, atol=1e-4), name


def learner(
    train: dict[str, PlacementProblem],
    unseen: dict[str, PlacementProblem],
    seed: int = 0,
    imitation: float = 0.0,
    units: UnitKind = "ops",
) -> OneShotLearner:
    config = default_config("constructive", "")
    assert isinstance(config, OneShotTrainConfig)
    learning = replace(config.learning, lr=3e-3, samples=32, imitation=imitation)
    policy = replace(SMALL, units=units)
    return OneShotLearner(Run(replace(config, seed=seed, policy=policy, learning=learning), train, unseen))


def forks(*chains: int, devices: int) -> dict[str, PlacementProblem]:
    return {f"fork{count}": fork_of_chains(count, 3, devices) for count in chains}


def test_places_unseen_graphs_at_their_optimum_and_untrained_it_does_not() -> None:
    """It is trained with 4 to 12 chains of 3 ops on 2 to 4 devices; each chain belongs on one device."""
    unseen = forks(8, devices=4) | forks(9, devices=3)
    made = learner(forks(4, 12, devices=4) | forks(6, devices=3) | forks(10, devices=2), unseen)
    state = made.initial_state()
    optimum = np.array([1 / 4, 1 / 3])
    assert (made.validate(state).end > 1.5 * optimum).all()
    for iteration in range(50):
        made.iterate(state, iteration / 50)
    np.testing.assert_allclose(made.validate(state).end, optimum, rtol=1e-6)


def test_imitates_what_annealing_found_without_a_sample_of_its_own() -> None:
    made = learner(forks(4, 12, devices=4) | forks(6, devices=3), forks(8, devices=4), imitation=1.0)
    state = made.initial_state()
    np.testing.assert_allclose(state.elite_score, [1 / 4, 1 / 4, 1 / 3])
    for iteration in range(50):
        made.iterate(state, iteration / 50)
    assert state.simulations == 0
    np.testing.assert_allclose(made.validate(state).end, 1 / 4)


def test_a_training_that_is_limited_by_simulations_ends_and_learns_from_rewards(tmp_path) -> None:
    limited = replace(default_config("constructive", str(tmp_path)), policy=SMALL, simulations=150)
    numbers = train(limited, forks(4, devices=2), forks(8, devices=2))
    assert numbers["placements/simulated"] >= 150
    assert np.isfinite(numbers["hparam/validation"])


@pytest.mark.parametrize("units", ["groups", "paper", "few"])
def test_what_is_imitated_has_the_score_that_it_is_kept_for(units) -> None:
    problem = PlacementProblem(random_graph(0, 200), toy_cluster(4))
    made = learner({"one": problem}, {"one": problem}, imitation=0.5, units=units)
    state = made.initial_state()
    lesson, _, _ = made._imitate(state, np.array([0]), Stopwatch())
    expanded = made.family.expand(0, lesson[0].placement)
    assert made.family.score(np.array([0]), expanded)[0, 0] == pytest.approx(state.elite_score[0])


def test_learns_to_leave_no_device_too_full() -> None:
    """12 ops with parameters, of which each of 4 devices holds 4: what doesn't fit has a longer penalised makespan."""

    def tight(seed: int) -> PlacementProblem:
        graph = random_graph(seed, 12)
        return PlacementProblem(replace(graph, param_bytes=np.full(12, 10**5)), toy_cluster(4, memory=42 * 10**4))

    unseen = {str(seed): tight(seed) for seed in range(8, 14)}
    made = learner({str(seed): tight(seed) for seed in range(8)}, unseen, seed=1)
    state = made.initial_state()

    def fitting() -> int:
        return sum(SamplingPlacer(state.policy)(problem).simulations == 1 for problem in unseen.values())

    assert fitting() <= 1
    for iteration in range(50):
        made.iterate(state, iteration / 50)
    assert fitting() >= len(unseen) - 1


def test_a_checkpoint_places_on_any_number_of_devices(tmp_path) -> None:
    config = replace(default_config("constructive", str(tmp_path / "run")), iterations=2)
    train(config, forks(4, 6, devices=2), forks(8, devices=2))
    placer = load_placer(tmp_path / "run")
    for devices in (2, 5):
        result = placer(fork_of_chains(10, 3, devices))
        assert (result.placer, result.simulations, result.fits) == ("constructive", 1, True)
        assert np.array_equal(result.placement, load_placer(tmp_path / "run")(fork_of_chains(10, 3, devices)).placement)
