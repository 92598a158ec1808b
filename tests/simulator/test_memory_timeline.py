import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from placeto.simulator.readings.memory_timeline import CATEGORIES, memory_by_category, peak_by_category
from placeto.simulator.schedule import simulate
from tests.cases import problem_of
from tests.reference import random_problem
from tests.toys import work


def test_two_ops_on_two_devices() -> None:
    ops = [
        {"name": "a", "param_bytes": 3, "outputs": [7], **work(10.0)},
        {"name": "b", "inputs": [["a", 0]], "outputs": [5], **work(20.0)},
    ]
    problem = problem_of(ops, 2, mode="inference")
    timelines = memory_by_category(simulate(problem, np.array([0, 1])), [0, 1])
    (times, first), (later, second) = timelines[0], timelines[1]
    assert (times.tolist(), first.sum(1).tolist()) == ([0.0, 17.0], [10, 3])
    assert (later.tolist(), second.sum(1).tolist()) == ([0.0, 17.0, 37.0], [0, 12, 0])


def test_what_the_peak_is_for() -> None:
    ops = [
        {"name": "w", "type": "parameter", "param_bytes": 3, "outputs": [3]},
        {"name": "a", "inputs": [["w", 0]], "outputs": [7], **work(10.0)},
        {"name": "b", "inputs": [["a", 0]], "outputs": [5], **work(20.0)},
    ]
    problem = problem_of(ops, 2)
    schedule = simulate(problem, np.array([0, 0, 1]))
    of = {"weights": 3, "gradients": 3, "optimizer": 6, "activations": 7, "received": 0}
    assert peak_by_category(schedule, 0) == of
    times, held = memory_by_category(schedule, [0])[0]
    assert times.tolist() == [0.0, 17.0]  # until the tensor of 7 bytes has arrived
    assert held.tolist() == [[3, 3, 6, 7, 0], [3, 3, 6, 0, 0]]
    assert peak_by_category(schedule, 1) == {**dict.fromkeys(CATEGORIES, 0), "activations": 5, "received": 7}


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_the_peak_is_the_schedules(seed: int) -> None:
    rng = np.random.default_rng(seed)
    schedule = simulate(*random_problem(rng, "unicast", "egress"))
    timelines = memory_by_category(schedule, range(schedule.problem.num_devices))
    for device, peak in enumerate(schedule.peak_memory.tolist()):
        times, held = timelines[device]
        assert (np.diff(times) > 0).all()
        assert held.sum(axis=1).max() == peak
        assert held.min() >= 0
        parts = peak_by_category(schedule, device)
        assert tuple(parts) == CATEGORIES
        assert sum(parts.values()) == peak
        assert min(parts.values()) >= 0
