import numpy as np
import pytest

from placeto.environment.instance import make_instance
from placeto.environment.walk import COST, CURRENT, NUM_FEATURES, OUTPUT, START, VISITED, Walk
from placeto.problem.grouping import expand
from placeto.simulator.schedule import simulate
from tests.cases import toy_problem
from tests.toys import fork_of_chains


@pytest.fixture(scope="module")
def walk():
    return Walk(make_instance(toy_problem(3, 30, 3)))


def test_makespans_and_starts_are_those_of_the_simulator(walk):
    problem, groups = walk.instance.problem, walk.instance.groups
    placement = np.stack([walk.random_start(seed) for seed in range(20)])
    makespan, start = walk.simulate(placement)
    for row in range(20):
        schedule = simulate(problem, expand(groups, placement[row]))
        assert makespan[row] == schedule.makespan_us / problem.single_device_us
        first = [schedule.start_us[groups.group == group].min() for group in range(walk.num_groups)]
        np.testing.assert_array_equal(start[row], first)


def test_each_group_is_visited_once_in_order_and_moves_that_change_nothing_are_not_simulated(walk):
    state, random, changed, met = walk.begin(4, walk.random_start()), np.random.default_rng(0), 4, []
    visited = []
    for _ in range(walk.num_groups):
        device = random.integers(3, size=4)
        changed += (state.placement[:, state.current] != device).sum()
        visited.append(state.current)
        met.append(state.makespan)
        state = state.move(device)
        assert (state.placement[:, visited[-1]] == device).all()
    assert sorted(visited) == list(range(walk.num_groups))
    np.testing.assert_array_equal(visited, walk.order)
    assert state.simulated == changed < 4 * (walk.num_groups + 1)
    np.testing.assert_array_equal(state.makespan, walk.simulate(state.placement)[0])
    np.testing.assert_array_equal(state.best, np.min([*met, state.makespan], 0))
    np.testing.assert_array_equal(state.best, walk.simulate(state.best_placement)[0])


def test_features_of_chains_by_hand():
    """Two chains of two ops of 10 us; the first group has moved to the other device."""
    walk = Walk(make_instance(fork_of_chains(2, 2)))
    state = walk.begin(1, np.zeros(walk.num_groups, np.int64)).move(np.array([1]))
    seen = state.features[0]
    assert seen.shape == (walk.num_groups, NUM_FEATURES + 2)
    np.testing.assert_array_equal(seen[:, COST], 1.0)
    assert seen[:, OUTPUT].max() == 1.0
    np.testing.assert_array_equal(np.flatnonzero(seen[:, VISITED]), walk.order[:1])
    np.testing.assert_array_equal(np.flatnonzero(seen[:, CURRENT]), walk.order[1:2])
    assert seen[walk.order[1], START] == 0.0
    assert np.abs(seen[:, START]).max() == 1.0
    np.testing.assert_array_equal(seen[:, NUM_FEATURES:].argmax(1), state.placement[0])
    np.testing.assert_array_equal(seen[:, NUM_FEATURES:].sum(1), 1.0)


def test_measured_makespans_count_in_place_of_simulated_ones(walk):
    measured = Walk(walk.instance, lambda number, ops: 10.0 * number + ops[0], 7)
    placement = np.zeros((1, walk.num_groups), np.int64)
    assert measured.simulate(placement)[0] * walk.instance.problem.single_device_us == pytest.approx(70.0)


def test_the_start_is_the_same_at_every_call(walk):
    np.testing.assert_array_equal(walk.random_start(), walk.random_start())
    assert set(walk.random_start()) == {0, 1, 2}
