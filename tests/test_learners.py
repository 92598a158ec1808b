import numpy as np
import torch

from placeto.learners import LEARNERS
from placeto.learners.iterative import IterativeLearner
from placeto.policies import POLICIES
from placeto.simulator import simulate
from tests.test_trainer import config, problems


def test_every_kind_of_policy_has_a_learner():
    assert {entry.kind for entry in POLICIES.values()} == set(LEARNERS)


def test_iterations_keep_the_best_placement_met_and_validation_changes_nothing(tmp_path):
    learner = IterativeLearner(config(tmp_path), problems(3), problems(2, 10), lambda note: None)
    state = learner.initial_state()
    before = state.elite_score.copy()
    numbers = learner.iterate(state, 0.0)
    assert (state.elite_score <= before).all()
    assert numbers["makespan/train"] >= state.elite_score.min()
    for index, problem in enumerate(learner.problems.values()):
        makespan = simulate(problem, learner.best_placement(state, index)).makespan_us
        np.testing.assert_allclose(makespan / problem.single_device_us, state.elite_score[index])
    parameters = {name: value.clone() for name, value in state.policy.state_dict().items()}
    random = state.torch_random.get_state()
    one, other = learner.validate(state), learner.validate(state)
    assert np.array_equal(one.relative, other.relative)
    assert torch.equal(random, state.torch_random.get_state())
    assert all(torch.equal(value, parameters[name]) for name, value in state.policy.state_dict().items())
    first = next(iter(learner.validation.values()))
    np.testing.assert_allclose(simulate(first, one.placement).makespan_us / first.single_device_us, one.relative[0])
