from dataclasses import replace

import numpy as np
import pytest

from placeto.placers import load_placer
from placeto.policies.placeto import PlacetoConfig
from placeto.simulator.schedule import simulate
from placeto.training.checkpoint import load_checkpoint, save_checkpoint
from placeto.training.curves import Curves
from placeto.training.learners.iterative import IterativeLearner
from placeto.training.learners.learner import Run
from placeto.training.learners.one_shot import OneShotLearner
from placeto.training.ranks import ALONE
from placeto.training.trainer import train
from placeto.training.validation import controls, validate
from tests.toys import fork_of_chains
from tests.training.test_learners import one_shot
from tests.training.test_trainer import config, problems, same


def iterative(tmp_path, validation):
    run = config(tmp_path, policy=PlacetoConfig(hidden=16))
    return IterativeLearner(Run(run, problems(2), validation))


def test_the_numbers_are_means_of_the_graphs_curves_and_the_best_parameters_are_kept(tmp_path):
    learner = iterative(tmp_path, problems(3, 10))
    state = learner.initial_state()
    state.controls = {"validation/random_end": 0.75}
    state.average_parameters(0.0)
    numbers = validate(learner, state, Curves(None), ALONE)
    ends = [numbers[f"validation/end/{name}"] for name in learner.validation]
    assert numbers["validation/end"] == np.mean(ends)
    assert numbers["validation/best_met"] <= numbers["validation/end"]
    assert numbers["validation/kept"] == numbers["validation/best_met"] == state.best_validation
    assert numbers["validation/random_end"] == 0.75
    assert same(state.best_parameters, state.policy.state_dict())
    state.best_validation = 0.01
    assert validate(learner, state, Curves(None), ALONE)["validation/kept"] == 0.01


def test_random_decisions_are_judged_from_the_same_start(tmp_path):
    """Where the start is optimal a pass meets nothing better, and moves that hurt are taken back."""
    learner = iterative(tmp_path, {"fork": fork_of_chains(8, 1)} | problems(1, 10))
    end, best_met = learner.validate_random()
    begin = [starts.score[0] for starts in learner.held_out.starts]
    assert best_met[0] == begin[0]
    assert (best_met <= begin).all()
    assert (end >= best_met).all()
    again = learner.validate_random()
    assert np.array_equal(end, again[0])
    assert np.array_equal(best_met, again[1])


def test_random_placements_of_whole_graphs_spread_independent_ops_badly_and_one_device_worse(tmp_path):
    """Eight ops of 10 us on two devices: 40 us is optimal, 80 us is one device, a random one is between them."""
    learner = OneShotLearner(Run(one_shot(tmp_path), problems(2), {"fork": fork_of_chains(8, 1)}))
    end, best_met = learner.validate_random()
    assert 0.5 < end[0] < 1.0
    assert np.array_equal(end, best_met)


def test_the_error_is_that_of_the_validation_that_was_kept(tmp_path):
    learner = iterative(tmp_path, problems(2, 10))
    state = learner.initial_state()
    judged = learner.validate(state).judged
    with Curves(None) as curves:
        numbers = validate(learner, state, curves, ALONE)
        assert numbers["validation/error"] == pytest.approx(judged.std(ddof=1) / 2**0.5)
        state.best_validation = 0.0  # nothing is better
        state.controls["validation/error"] = 0.25
        assert validate(learner, state, curves, ALONE)["validation/error"] == 0.25


def test_controls_are_of_the_network_before_training(tmp_path):
    learner = iterative(tmp_path, problems(2, 10))
    state = learner.initial_state()
    before = learner.validate(state)
    found = controls(learner, state, ALONE)
    assert found["validation/untrained_end"] == before.end.mean()
    assert found["validation/untrained_best_met"] == before.best_met.mean()
    assert found["validation/heuristic"] == pytest.approx(learner.held_out.heuristic.mean())
    first = next(iter(learner.validation.values()))
    metis = [
        load_placer("metis")(problem).makespan_us / problem.single_device_us for problem in learner.validation.values()
    ]
    assert found["validation/metis"] == pytest.approx(np.mean(metis))
    assert found["validation/multilevel"] <= found["validation/heuristic"]  # it begins with the heuristics
    np.testing.assert_allclose(
        simulate(first, before.placement).makespan_us / first.single_device_us, before.best_met[0]
    )


def test_before_fine_tuning_the_network_is_that_of_the_checkpoint(tmp_path):
    run = one_shot(tmp_path / "first")
    train(run, problems(2), problems(2, 10))
    initial = load_checkpoint(tmp_path / "first")
    tuned = replace(run, out=str(tmp_path / "tuned"), iterations=1, seed=7)
    numbers = train(tuned, problems(1, 20), problems(2, 10), initial=initial)
    assert numbers["validation/untrained_end"] == initial["best_validation"]


def test_a_run_that_goes_on_has_the_controls_of_its_beginning(tmp_path):
    run = one_shot(tmp_path)
    before = train(run, problems(2), problems(2, 10))
    checkpoint = load_checkpoint(tmp_path)
    assert checkpoint["controls"]["validation/untrained_end"] == before["validation/untrained_end"]
    save_checkpoint(checkpoint | {"controls": {"validation/random_end": 0.5}}, tmp_path)
    assert train(replace(run, iterations=9), problems(2), problems(2, 10), resume=True)["validation/random_end"] == 0.5
