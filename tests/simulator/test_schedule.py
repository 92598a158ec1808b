import hashlib
import math
import os
import pickle
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placeto.errors import PlacementError
from placeto.problem.cluster import DISPATCHES, load_cluster
from placeto.problem.graph import ComputationGraph
from placeto.problem.problem import PlacementProblem
from placeto.simulator import kernel, schedule
from placeto.simulator.readings.critical_path import critical_path
from placeto.simulator.schedule import Schedule, simulate, simulate_batch
from placeto.simulator.single_device import best_single
from placeto.simulator.slack import fill_slack
from tests.cases import problem_of
from tests.reference import Result, random_graph, random_problem, reference, reference_memory, reference_slack
from tests.toys import alike, linked

ROOT = Path(__file__).parents[2]
MODES = [("unicast", "egress"), ("unicast", "pair"), ("broadcast", "egress"), ("broadcast", "pair")]
ALL_MODES = [(transfers, link, False) for transfers, link in [*MODES, ("unicast", "free")]] + [
    ("unicast", "egress", True),
    ("unicast", "pair", True),
]


@pytest.mark.parametrize("dispatch", DISPATCHES)
@pytest.mark.parametrize(("transfers", "link", "shared"), ALL_MODES)
@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_equals_the_plain_reference(transfers: str, link: str, shared: bool, dispatch: str, seed: int) -> None:
    """To the bit, but slack, whose sums the reference adds up in another order."""
    rng = np.random.default_rng(seed)
    for _ in range(2):
        problem, placement = random_problem(rng, transfers, link, dispatch, shared)
        schedule, expected = simulate(problem, placement), reference(problem, placement)
        _assert_same_times(schedule, expected)
        names = problem.graph.op_names
        peak = reference_memory(problem, placement, expected)
        assert schedule.peak_memory.tolist() == [peak[device] for device in problem.cluster.device_names]
        slack_of = reference_slack(problem, placement, expected)
        tolerance = 1e-8 * max(1.0, schedule.makespan_us)
        np.testing.assert_allclose(schedule.slack_us, [slack_of[name] for name in names], rtol=0, atol=tolerance)
        assert schedule.slack_us.min() == 0.0  # the op with which the critical path begins
        assert problem.lower_bound_us <= schedule.makespan_us * (1 + 1e-12)
        _assert_cutoff_only_cuts(problem, placement, schedule, float(rng.uniform(0, 1.2)))


@pytest.mark.parametrize("dispatch", DISPATCHES)
@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_ops_wait_until_the_host_has_launched_them(dispatch: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    problem, placement = random_problem(rng, "unicast", "egress", dispatch)
    boards = [replace(board, launch_us=float(rng.choice([0.0, 20.0, 150.0]))) for board in problem.cluster.devices]
    problem = replace(problem, cluster=replace(problem.cluster, devices=tuple(boards)))
    schedule = simulate(problem, placement)
    _assert_same_times(schedule, reference(problem, placement))
    assert problem.lower_bound_us <= schedule.makespan_us * (1 + 1e-12)
    assert schedule.makespan_us <= problem.horizon_us
    alone = [simulate(problem, np.full(problem.num_ops, d)).makespan_us for d in range(problem.num_devices)]
    assert problem.alone_us.tolist() == alone
    single = best_single(problem)
    assert single is None or single.makespan_us == min(
        makespan for d, makespan in enumerate(alone) if simulate(problem, np.full(problem.num_ops, d)).fits
    )
    assert schedule.slack_us.min() == 0.0
    for ops, board in zip(schedule.device_order, boards, strict=True):
        timed = [op for op in ops.tolist() if schedule.finish_us[op] > schedule.start_us[op]]
        assert all(schedule.start_us[op] >= board.launch_us * place for place, op in enumerate(timed))
    path = critical_path(schedule)
    assert sum(path.time_us.values()) == pytest.approx(schedule.makespan_us)
    assert path.time_us["idle"] == pytest.approx(0.0, abs=1e-6)


def _assert_same_times(schedule: Schedule, expected: Result) -> None:
    graph, devices = schedule.problem.graph, schedule.problem.cluster.device_names
    assert schedule.makespan_us == expected.makespan
    assert schedule.start_us.tolist() == [expected.start[name] for name in graph.op_names]
    assert schedule.finish_us.tolist() == [expected.finish[name] for name in graph.op_names]
    assert schedule.send_start_us.tolist() == [send.start for send in expected.sends]
    assert schedule.send_finish_us.tolist() == [send.finish for send in expected.sends]
    assert [devices[d] for d in schedule.send_src] == [send.src for send in expected.sends]
    output = np.arange(len(graph.output_bytes)) - np.repeat(graph.output_ptr[:-1], np.diff(graph.output_ptr))
    producer = np.repeat(np.arange(graph.num_ops), np.diff(graph.output_ptr))
    sent = [(graph.op_names[producer[t]], int(output[t])) for t in schedule.send_tensor]
    assert sent == [send.tensor for send in expected.sends]
    for dst, send in zip(schedule.send_dst, expected.sends, strict=True):
        assert (dst == -1) == send.broadcast
        if dst >= 0:
            assert {devices[schedule.placement[graph.index[child]]] for child in send.consumers} == {devices[dst]}
    starts = [i for i in schedule.order if i < graph.num_ops]
    for d, device in enumerate(devices):
        ran = [graph.op_names[i] for i in starts if schedule.placement[i] == d]
        assert ran == expected.device_order[device]


def _assert_cutoff_only_cuts(
    problem: PlacementProblem, placement: np.ndarray, exact: Schedule, fraction: float
) -> None:
    for cutoff in (exact.makespan_us, exact.makespan_us * fraction, math.nextafter(exact.makespan_us, -1)):
        cut = simulate(problem, placement, cutoff)
        if cutoff >= exact.makespan_us:
            assert cut.makespan_us == exact.makespan_us
            np.testing.assert_array_equal(cut.start_us, exact.start_us)
            np.testing.assert_array_equal(cut.send_finish_us, exact.send_finish_us)
        else:
            assert cut.makespan_us == math.inf
            assert cut.num_sends == 0


def test_golden_schedule() -> None:
    """Worked out by hand. Two k80 devices: overhead 5.7, 7600 bytes/us, link gap 25, broadcast.

    a (10 us) on 0 makes x of 76000 bytes (10 us to send); b (20 us) on 0 and c (5 us) on 1 read x; d (0 us) on 1
    reads c and b's y of 7600 bytes (1 us to send).
      0: a runs 0-10, device free at 15.7
     10: x leaves, arrives at 20, link free at 45; b is ready at 10
     15.7: b runs to 35.7, device free at 41.4; y is ready at 35.7 but waits for the link
     20: c runs to 25, device free at 30.7
     45: y leaves, arrives at 46, link free at 71
     46: d runs for 0 us, no overhead
    Makespan: 71, when the link is idle again.
    """
    graph = ComputationGraph.from_ops(
        "golden",
        [
            {"name": "a", "outputs": [76000], "time_us": {"k80": 10.0}, "param_bytes": 100},
            {"name": "b", "outputs": [7600], "inputs": [["a", 0]], "time_us": {"k80": 20.0}},
            {"name": "c", "outputs": [50], "inputs": [["a", 0]], "time_us": {"k80": 5.0}},
            {"name": "d", "inputs": [["c", 0], ["b", 0]], "time_us": {"k80": 0.0}},
        ],
    )
    problem = PlacementProblem(graph, load_cluster("2xk80"))
    schedule = simulate(problem, np.array([0, 0, 1, 1]))
    assert schedule.start_us.tolist() == [0.0, 10 + 5.7, 20.0, 46.0]
    assert schedule.finish_us.tolist() == [10.0, 15.7 + 20, 25.0, 46.0]
    assert schedule.send_start_us.tolist() == [10.0, 45.0]
    assert schedule.send_finish_us.tolist() == [20.0, 46.0]
    assert schedule.send_src.tolist() == [0, 0]
    assert schedule.send_dst.tolist() == [-1, -1]
    assert schedule.makespan_us == 71.0
    # Device 0: x until b ends (35.7), y from 15.7 to 46.
    # Device 1: x from 20 to 25, c's output from 20 to 46, y for no time.
    assert schedule.peak_memory.tolist() == [4 * 100 + 76000 + 7600, 76000 + 50]
    # The link is critical (10-20-45-46-71), so a's end is; b may end at 45, and c and d only at the makespan:
    # c must leave d 0 us and the overhead before 71, 65.3 - 25 = 40.3; d ends the schedule, 71 - 46.
    np.testing.assert_allclose(schedule.slack_us, [0.0, 45 - 35.7, 71 - 25 - 5.7, 25.0], rtol=1e-12)
    assert schedule.slack_us[0] == 0.0


def _batches(rng: np.random.Generator, size: int) -> list[tuple[PlacementProblem, np.ndarray]]:
    problems = [random_problem(rng, *MODES[i % len(MODES)])[0] for i in range(12)]
    tight = linked(alike(40_000, 90_000), 1000.0)
    problems += [PlacementProblem(random_graph(rng, 20), tight) for _ in range(3)]
    return [(each, rng.integers(0, each.num_devices, (size, each.num_ops))) for each in problems]


def test_batches_equal_single_schedules_in_rows_of_any_number() -> None:
    """Few rows, which one thread simulates, as well."""
    fit = set()
    for problem, placements in _batches(np.random.default_rng(5), 15):
        makespans, overflows = simulate_batch(problem, placements)
        for placement, makespan, overflow in zip(placements, makespans, overflows, strict=True):
            schedule = simulate(problem, placement)
            assert (makespan, overflow) == (schedule.makespan_us, schedule.overflow)
            assert (overflow == 0.0) == schedule.fits
            fit.add(schedule.fits)
        np.testing.assert_array_equal(simulate_batch(problem, placements[:2]), (makespans[:2], overflows[:2]))
    assert fit == {True, False}


THREADS = """
import hashlib
import numpy as np
from placeto.simulator.schedule import simulate_batch
from placeto.simulator.slack import fill_slack
from tests.simulator.test_schedule import _batches
digest = hashlib.sha256()
for batch in _batches(np.random.default_rng(6), 400):
    for array in simulate_batch(*batch):
        digest.update(array.tobytes())
print(digest.hexdigest())
"""


def test_batch_does_not_depend_on_threads() -> None:
    """In processes of their own, since the number is read at the start."""
    digests = set()
    for threads in ("1", "2"):
        environment = {**os.environ, "NUMBA_NUM_THREADS": threads}
        command = [sys.executable, "-c", THREADS]
        digests.add(subprocess.run(command, env=environment, cwd=ROOT, stdout=subprocess.PIPE, check=True).stdout)
    (digest,) = digests
    own = hashlib.sha256()
    for batch in _batches(np.random.default_rng(6), 400):
        for array in simulate_batch(*batch):
            own.update(array.tobytes())
    assert digest.decode().strip() == own.hexdigest()


@pytest.mark.parametrize("rows", [2, 4])
def test_nothing_is_compiled_twice(rows: int) -> None:
    """Arrays that are read-only, or have been, and whole numbers would each be another type to numba."""
    rng = np.random.default_rng(2)
    problem, placement = random_problem(rng, "unicast", "egress")
    placements = np.stack([placement] * rows)
    once, (makespans, overflows) = simulate(problem, placement), simulate_batch(problem, placements)
    kernels = (kernel.new_record, kernel.run, fill_slack, schedule._first_invalid, schedule.score_rows)
    assert once.slack_us.min() == 0.0
    before = [len(kernel.signatures) for kernel in kernels]

    again = pickle.loads(pickle.dumps(problem))
    placement.setflags(write=False)
    placements.setflags(write=False)
    for cutoff in (10**9, np.float32(1e9)):
        assert simulate(problem, placement, cutoff).makespan_us == once.makespan_us
        np.testing.assert_array_equal(simulate(again, placement, cutoff).slack_us, once.slack_us)
        for same in (problem, again):
            for same_rows in (placements, placements.astype(np.int32), np.asfortranarray(placements)):
                np.testing.assert_array_equal(simulate_batch(same, same_rows), (makespans, overflows))
    assert [len(kernel.signatures) for kernel in kernels] == before


def test_bad_placements_are_refused_in_one_sentence() -> None:
    graph = ComputationGraph.from_ops("g", [{"name": "a"}, {"name": "b"}])
    problem = PlacementProblem(graph, load_cluster("2xk80"))
    with pytest.raises(PlacementError, match=r"op 'b': there is no device 2, '2xk80' has 0\.\.1"):
        simulate(problem, np.array([0, 2]))
    with pytest.raises(PlacementError, match="op 'a': there is no device -1"):
        simulate(problem, np.array([-1, 0]))
    with pytest.raises(PlacementError, match=r"must be 2 integers, one device per op, not int64 of shape \(3,\)"):
        simulate(problem, np.array([0, 0, 0]))
    with pytest.raises(PlacementError, match="op 'b': there is no device 7"):
        simulate_batch(problem, np.array([[0, 0], [0, 7]]))
    with pytest.raises(PlacementError, match=r"must be 2 integers, one device per op, not int64 of shape \(3,\)"):
        simulate_batch(problem, np.zeros((2, 3), np.int64))
    with pytest.raises(PlacementError, match=r"must be \(B, N\), one row for each placement, not of shape \(2,\)"):
        simulate_batch(problem, np.array([0, 1]))
    with pytest.raises(TypeError, match="a PlacementProblem is needed"):
        simulate_batch(graph, np.array([[0, 1]]))


def test_launching_counts_as_busy() -> None:
    """Ops of no time are not launched."""
    ops = [{"name": name, "time_us": {"*": us}} for name, us in (("a", 30.0), ("b", 10.0), ("c", 0.0))]
    problem = problem_of(ops, "4xv100")
    assert simulate(problem, np.array([0, 0, 2])).busy_us.tolist() == [50.0, 0.0, 0.0, 0.0]
