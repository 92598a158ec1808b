from __future__ import annotations

import math
from itertools import pairwise

import networkx as nx
import numba
import numpy as np
import pytest

from placeto.cluster import Cluster, Device, load_cluster
from placeto.cost import PlacementProblem, ProblemBatch
from placeto.graph import ComputationGraph
from placeto.simulator import PlacementError, simulate, simulate_batch, slack
from tests.reference import Result, random_graph, random_problem, reference, reference_memory

MODES = [("unicast", "egress"), ("unicast", "pair"), ("broadcast", "egress"), ("broadcast", "pair")]


@pytest.mark.parametrize(("transfers", "link"), MODES)
def test_equals_the_plain_reference_to_the_bit(transfers: str, link: str) -> None:
    rng = np.random.default_rng(MODES.index((transfers, link)))
    for _ in range(320):
        problem, placement = random_problem(rng, transfers, link)
        schedule, expected = simulate(problem, placement), reference(problem, placement)
        names, devices = problem.graph.op_names, problem.cluster.device_names
        assert schedule.makespan_us == expected.makespan
        assert schedule.start_us.tolist() == [expected.start[name] for name in names]
        assert schedule.finish_us.tolist() == [expected.finish[name] for name in names]
        assert schedule.send_start_us.tolist() == [send.start for send in expected.sends]
        assert schedule.send_finish_us.tolist() == [send.finish for send in expected.sends]
        sources = [devices[d] for d in schedule.send_src]
        assert sources == [send.src for send in expected.sends]
        for dst, send in zip(schedule.send_dst, expected.sends, strict=True):
            assert (dst == -1) == send.broadcast
            if dst >= 0:
                assert {devices[placement[problem.graph.index[child]]] for child in send.consumers} == {devices[dst]}
        peak = reference_memory(problem, placement, expected)
        assert schedule.peak_memory.tolist() == [peak[device] for device in devices]
        assert problem.lower_bound_us <= schedule.makespan_us * (1 + 1e-12)


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


def test_unicast_sends_once_per_destination_and_broadcast_once() -> None:
    ops = [{"name": "a", "outputs": [1000], "time_us": {"*": 10.0}}]
    ops += [{"name": f"b{i}", "inputs": [["a", 0]], "time_us": {"*": 1.0}} for i in range(3)]
    graph, devices = ComputationGraph.from_ops("fan", ops), [Device(f"d{i}", "x", 1e12, 1e12, 10**9) for i in range(3)]
    bandwidth = np.array([[1, 100, 50], [1, 1, 1], [1, 1, 1]], np.float64)
    ends = {}
    for transfers, link in MODES:
        cluster = Cluster("c", tuple(devices), bandwidth, np.full((3, 3), 2.0), transfers, link)
        ends[transfers, link] = simulate(PlacementProblem(graph, cluster), np.array([0, 2, 1, 1])).finish_us.tolist()
    assert ends["unicast", "egress"] == [10, 10 + 22 + 1, 10 + 22 + 12 + 1, 10 + 22 + 12 + 2]
    assert ends["unicast", "pair"] == ends["broadcast", "pair"] == [10, 33, 23, 24]
    assert ends["broadcast", "egress"] == [10, 33, 33, 34]  # the slowest destination's time


@pytest.mark.parametrize(("transfers", "link"), MODES)
def test_slack_is_the_longest_path_backward(transfers: str, link: str) -> None:
    rng = np.random.default_rng(7)
    for _ in range(25):
        problem, placement = random_problem(rng, transfers, link)
        schedule = simulate(problem, placement)
        late = _latest_ends(problem, placement, reference(problem, placement))
        expected = [late[name] - end for name, end in zip(problem.graph.op_names, schedule.finish_us, strict=True)]
        np.testing.assert_allclose(schedule.slack_us, expected, atol=1e-8 * max(1.0, schedule.makespan_us))
        assert (schedule.slack_us >= 0).all()
        assert schedule.slack_us.min() == 0.0  # the op with which the critical path begins
        np.testing.assert_array_equal(slack(problem, schedule), schedule.slack_us)


def _latest_ends(problem: PlacementProblem, placement: np.ndarray, result: Result) -> dict[str, float]:
    """Latest end of each op: the makespan less the longest path (networkx) from the op's end to the schedule's."""
    graph, cluster = problem.graph, problem.cluster
    device = {name: cluster.device_names[d] for name, d in zip(graph.op_names, placement, strict=True)}
    after = {}
    for i, name in enumerate(graph.op_names):
        time = problem.op_time[i, placement[i]]
        after[name] = cluster.overhead_us[placement[i]] if time > 0 else 0.0
    arcs = nx.MultiDiGraph()  # from an end to a later end, with the least time between the two
    length = {name: problem.op_time[i, placement[i]] for i, name in enumerate(graph.op_names)}
    for name in graph.op_names:
        arcs.add_edge(name, "END", weight=after[name])
    for src, dst in zip(graph.edge_src, graph.edge_dst, strict=True):
        parent, child = graph.op_names[src], graph.op_names[dst]
        if device[parent] == device[child]:
            arcs.add_edge(parent, child, weight=length[child])
    for number, send in enumerate(result.sends):
        arcs.add_edge(send.tensor[0], number, weight=send.cost)
        arcs.add_edge(number, "END", weight=cluster.link_gap_us)
        for child in send.consumers:
            arcs.add_edge(number, child, weight=length[child])
    for order in result.device_order.values():
        for first, second in pairwise(order):
            arcs.add_edge(first, second, weight=after[first] + length[second])
    number_of = {id(send): number for number, send in enumerate(result.sends)}
    for sends in result.link_order.values():
        for first, second in pairwise(sends):
            arcs.add_edge(number_of[id(first)], number_of[id(second)], weight=cluster.link_gap_us + second.cost)
    longest = {"END": 0.0}
    for node in reversed(list(nx.topological_sort(arcs))):
        if node != "END":
            longest[node] = max(data["weight"] + longest[child] for _, child, data in arcs.out_edges(node, data=True))
    return {name: result.makespan - longest[name] for name in graph.op_names}


@pytest.mark.parametrize(("transfers", "link"), MODES)
def test_cutoff_gives_inf_above_it_and_changes_nothing_below(transfers: str, link: str) -> None:
    rng = np.random.default_rng(3)
    for _ in range(60):
        problem, placement = random_problem(rng, transfers, link)
        exact = simulate(problem, placement)
        at_limit = simulate(problem, placement, cutoff=exact.makespan_us)
        assert at_limit.makespan_us == exact.makespan_us
        np.testing.assert_array_equal(at_limit.start_us, exact.start_us)
        if exact.makespan_us > 0:
            above = simulate(problem, placement, cutoff=math.nextafter(exact.makespan_us, 0))
            assert above.makespan_us == math.inf
            assert above.num_sends == 0


def _batch(rng: np.random.Generator, size: int) -> tuple[ProblemBatch, np.ndarray, np.ndarray]:
    problems = [random_problem(rng, *MODES[i % len(MODES)])[0] for i in range(12)]
    tight = Cluster("tight", (Device("a", "x", 1e12, 1e12, 40_000), Device("b", "x", 1e12, 1e12, 90_000)), *_two())
    problems += [PlacementProblem(random_graph(rng, 20), tight) for _ in range(3)]
    batch = ProblemBatch.of(problems)
    index = rng.integers(0, len(problems), size)
    placements = np.full((size, batch.max_ops + 3), -99)
    for row, p in enumerate(index):
        placements[row, : problems[p].num_ops] = rng.integers(0, problems[p].num_devices, problems[p].num_ops)
    return batch, index, placements


def _two() -> tuple[np.ndarray, np.ndarray]:
    return np.full((2, 2), 1000.0), np.zeros((2, 2))


def test_batch_equals_single_and_reports_overflow() -> None:
    batch, index, placements = _batch(np.random.default_rng(5), 200)
    makespans, overflows = simulate_batch(batch, index, placements)
    for row, p in enumerate(index):
        problem = batch.problems[p]
        schedule = simulate(problem, placements[row, : problem.num_ops])
        assert makespans[row] == schedule.makespan_us
        assert overflows[row] == schedule.overflow
        assert (overflows[row] == 0.0) == schedule.fits
    assert (overflows > 0).any()
    assert (overflows == 0).any()


def test_batch_does_not_depend_on_threads() -> None:
    batch, index, placements = _batch(np.random.default_rng(6), 100)
    results = []
    before = numba.get_num_threads()
    try:
        for threads in sorted({1, before}):
            numba.set_num_threads(threads)
            results.append(np.stack(simulate_batch(batch, index, placements)))
    finally:
        numba.set_num_threads(before)
    np.testing.assert_array_equal(results[0], results[-1])


def test_batch_cutoff() -> None:
    batch, index, placements = _batch(np.random.default_rng(8), 50)
    makespans, overflows = simulate_batch(batch, index, placements)
    cutoff = float(np.median(makespans))
    cut, cut_overflows = simulate_batch(batch, index, placements, cutoff)
    np.testing.assert_array_equal(cut, np.where(makespans <= cutoff, makespans, np.inf))
    np.testing.assert_array_equal(cut_overflows, np.where(makespans <= cutoff, overflows, np.inf))


def test_schedule_keeps_its_own_placement() -> None:
    problem, placement = random_problem(np.random.default_rng(0), "unicast", "egress")
    schedule = simulate(problem, placement)
    before = schedule.placement.copy()
    placement[:] = 0
    np.testing.assert_array_equal(schedule.placement, before)


def test_bad_placements_are_refused_in_one_sentence() -> None:
    graph = ComputationGraph.from_ops("g", [{"name": "a"}, {"name": "b"}])
    problem = PlacementProblem(graph, load_cluster("2xk80"))
    with pytest.raises(PlacementError, match=r"op 'b': there is no device 2, '2xk80' has 0\.\.1"):
        simulate(problem, np.array([0, 2]))
    with pytest.raises(PlacementError, match="op 'a': there is no device -1"):
        simulate(problem, np.array([-1, 0]))
    with pytest.raises(PlacementError, match=r"must be 2 integers, one device per op, not int64 of shape \(3,\)"):
        simulate(problem, np.array([0, 0, 0]))
    with pytest.raises(PlacementError, match="not float64"):
        simulate(problem, np.array([0.0, 1.0]))
    batch = ProblemBatch.of([problem])
    with pytest.raises(PlacementError, match="op 'b': there is no device 7"):
        simulate_batch(batch, np.array([0, 0]), np.array([[0, 0], [0, 7]]))
    with pytest.raises(PlacementError, match="row 1: there is no problem 1 in a batch of 1"):
        simulate_batch(batch, np.array([0, 1]), np.array([[0, 0], [0, 0]]))
    with pytest.raises(PlacementError, match="must match"):
        simulate_batch(batch, np.array([0]), np.array([[0, 0], [0, 0]]))
    with pytest.raises(PlacementError, match=r"must be 2 integers"):
        simulate_batch(batch, np.array([0]), np.array([[0]]))
