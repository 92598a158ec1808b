import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placeto.problem.cluster import load_cluster
from placeto.simulator.readings.critical_path import PARTS, critical_path
from placeto.simulator.schedule import simulate
from tests.cases import problem_of
from tests.reference import random_problem
from tests.toys import work


def test_a_chain_over_two_devices() -> None:
    ops = [{"name": "a", "outputs": [7], **work(10.0)}, {"name": "b", "inputs": [["a", 0]], **work(20.0)}]
    problem = problem_of(ops, 2)
    path = critical_path(simulate(problem, np.array([0, 1])))
    assert path.steps.tolist() == [0, 2, 1]
    assert path.needed.tolist() == [True, True, True]
    assert {part: us for part, us in path.time_us.items() if us} == {"compute": 30.0, "transfer": 7.0}
    assert path.shares["transfer"] == 7 / 37


def test_waiting_for_a_busy_device_and_a_busy_link() -> None:
    """a is in the way of b; b's first tensor, which c needs, is in the way of its second, which d needs."""
    ops = [
        {"name": "a", **work(10.0)},
        {"name": "b", "outputs": [5, 40], **work(3.0)},
        {"name": "c", "inputs": [["b", 0]], **work(1.0)},
        {"name": "d", "inputs": [["b", 1]], **work(2.0)},
    ]
    problem = problem_of(ops, 2)
    path = critical_path(simulate(problem, np.array([0, 0, 1, 1])))
    assert path.steps.tolist() == [0, 1, 4, 5, 3]
    assert path.needed.tolist() == [False, True, False, True, True]
    assert {part: us for part, us in path.time_us.items() if us} == {
        "device": 10.0, "compute": 5.0, "link": 5.0, "transfer": 40.0,
    }  # fmt: skip


def test_on_one_device_ops_wait_for_launches_and_for_their_inputs() -> None:
    ops = [{"name": name, "outputs": [1], "time_us": {"*": 5.0}} for name in "ab"]
    cluster = load_cluster("2xv100")
    path = critical_path(simulate(problem_of(ops, cluster), np.zeros(2, int)))
    assert path.time_us["launch"] == pytest.approx(2 * cluster.devices[0].overhead_us)
    ops[1]["inputs"] = [["a", 0]]
    path = critical_path(simulate(problem_of(ops, cluster), np.zeros(2, int)))
    assert path.needed.tolist() == [True, True]
    assert path.took_us.tolist() == [5.0, 5.0]
    assert path.time_us["device"] == 0.0


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_the_parts_add_up_and_nothing_is_left_unexplained(seed: int) -> None:
    rng = np.random.default_rng(seed)
    transfers, link, shared = [
        ("unicast", "egress", True), ("unicast", "pair", False), ("broadcast", "egress", False),
        ("unicast", "free", False),
    ][seed % 4]  # fmt: skip
    problem, placement = random_problem(rng, transfers, link, ("fifo", "priority", "list")[seed % 3], shared)
    schedule = simulate(problem, placement)
    path = critical_path(schedule)
    assert set(path.time_us) == set(PARTS)
    assert sum(path.time_us.values()) == pytest.approx(schedule.makespan_us)
    assert path.time_us["idle"] == pytest.approx(0.0, abs=1e-6 * schedule.makespan_us)
    ops = path.steps[path.steps < problem.num_ops]
    assert schedule.slack_us[ops] == pytest.approx(0.0, abs=1e-6 * schedule.makespan_us)
