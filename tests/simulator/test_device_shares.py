import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from placeto.simulator.readings.device_shares import device_shares
from placeto.simulator.schedule import simulate
from tests.cases import problem_of
from tests.reference import random_problem


def test_a_step_that_takes_no_time_is_waiting() -> None:
    ops = [{"name": "a", "time_us": {"*": 0.0}}]
    problem = problem_of(ops, 1)
    assert device_shares(simulate(problem, np.zeros(1, int))).tolist() == [[0.0, 0.0, 1.0]]


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), transfers=st.sampled_from(["unicast", "broadcast"]))
def test_shares_are_those_of_moments_of_the_step(seed: int, transfers: str) -> None:
    schedule = simulate(*random_problem(np.random.default_rng(seed), transfers, "egress"))
    assume(schedule.makespan_us > 0.0)
    overhead = np.where(
        schedule.finish_us > schedule.start_us, schedule.problem.cluster.overhead_us[schedule.placement], 0
    )
    ends = [schedule.finish_us + overhead, schedule.send_finish_us]
    times = np.unique(np.concatenate([[0.0], schedule.start_us, schedule.send_start_us, *ends, [schedule.makespan_us]]))
    middle, took = 0.5 * (times[1:] + times[:-1]), np.diff(times)
    for device, shares in enumerate(device_shares(schedule)):
        own, sent = schedule.placement == device, schedule.send_src == device
        busy = ((schedule.start_us[own] < middle[:, None]) & (middle[:, None] < ends[0][own])).any(axis=1)
        sends = ((schedule.send_start_us[sent] < middle[:, None]) & (middle[:, None] < ends[1][sent])).any(axis=1)
        parts = np.array([took[busy].sum(), took[sends & ~busy].sum(), took[~sends & ~busy].sum()])
        assert shares == pytest.approx(parts / schedule.makespan_us, abs=1e-9)
