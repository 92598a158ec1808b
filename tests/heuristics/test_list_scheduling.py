from collections.abc import Callable

import numpy as np
import pytest

from placeto.heuristics import HEURISTICS
from placeto.heuristics.list_scheduling import (
    Listed,
    floating_ops,
    hard_groups,
    place_by_finish,
    place_by_start,
    upward_rank,
)
from placeto.problem.cluster import Device
from placeto.problem.graph import ComputationGraph
from placeto.problem.problem import PlacementProblem
from placeto.simulator.schedule import simulate
from tests.cases import problem_of
from tests.toys import alike, linked

# The example of Topcuoglu et al. (2002), figure 2 and table 1: times on three processors, and what edges cost.
TIMES = [
    (14, 16, 9), (13, 19, 18), (11, 13, 19), (13, 8, 17), (12, 13, 10),
    (13, 16, 9), (7, 15, 11), (5, 11, 14), (18, 12, 20), (21, 7, 16),
]  # fmt: skip
EDGES = {
    (1, 2): 18, (1, 3): 12, (1, 4): 9, (1, 5): 11, (1, 6): 14, (2, 8): 19, (2, 9): 16, (3, 7): 23,
    (4, 8): 27, (4, 9): 23, (5, 9): 13, (6, 8): 15, (7, 10): 17, (8, 10): 11, (9, 10): 13,
}  # fmt: skip
RANKS = (108.000, 77.000, 80.000, 80.000, 69.000, 63.333, 42.667, 35.667, 44.333, 14.667)
PLACEMENT = [2, 0, 2, 1, 2, 1, 2, 0, 1, 1]  # figure 3a


def published_example() -> PlacementProblem:
    """1 byte travels for 1 us, each edge has a tensor of its own."""
    ops: list[dict] = []
    for task, times in enumerate(TIMES, 1):
        outgoing = [edge for edge in EDGES if edge[0] == task]
        inputs = [
            [f"n{parent}", [e for e in EDGES if e[0] == parent].index((parent, child))]
            for parent, child in EDGES
            if child == task
        ]
        record = {"name": f"n{task}", "outputs": [EDGES[edge] for edge in outgoing], "inputs": inputs}
        ops.append(record | {"time_us": {f"p{d}": float(time) for d, time in enumerate(times)}})
    devices = tuple(Device(f"p{d}", f"p{d}", 1.0, 1.0, 1000) for d in range(3))
    return problem_of(ops, linked(devices, link="pair"))


def test_upward_ranks_of_the_published_example() -> None:
    assert upward_rank(published_example()) == pytest.approx(RANKS, abs=1e-3)


def test_heft_is_no_worse_on_the_published_example_than_its_authors_placement() -> None:
    """Theirs has a makespan of 80 where links carry any number of tensors at once; here they carry one."""
    problem = published_example()
    result = HEURISTICS["heft"](problem)
    assert 73.0 <= result.makespan_us <= simulate(problem, np.array(PLACEMENT)).makespan_us


def test_heft_fills_gaps() -> None:
    """While `join` waits for the slow branch, the low-ranked op fits in before it."""
    ops = [
        {"name": "long", "time_us": {"*": 100.0}, "outputs": [1]},
        {"name": "short", "time_us": {"*": 10.0}, "outputs": [1]},
        {"name": "join", "time_us": {"*": 50.0}, "inputs": [["long", 0], ["short", 0]]},
        {"name": "extra", "time_us": {"*": 40.0}},
    ]
    problem = problem_of(ops, linked(alike(10**9, 10**9), 1e3))
    result = HEURISTICS["heft"](problem)
    assert result.placement[3] == result.placement[1] != result.placement[0]
    assert result.makespan_us == pytest.approx(150.0, abs=0.01)


@pytest.mark.parametrize("name", ["heft", "etf"])
def test_dear_transfers_keep_ops_together(name: str) -> None:
    ops = [
        {"name": "a", "time_us": {"*": 10.0}, "outputs": [10**8]},
        {"name": "b", "time_us": {"*": 10.0}, "inputs": [["a", 0]]},
        {"name": "c", "time_us": {"*": 10.0}, "inputs": [["a", 0]]},
    ]
    problem = problem_of(ops, "2xp100")
    assert len(set(HEURISTICS[name](problem).placement.tolist())) == 1


def branches(count: int, tensor: int = 1, size: int = 8) -> list[dict]:
    """Chains of a layer and its gradient from one input; parameters take no time and go with their gradients."""
    ops: list[dict] = [{"name": "input", "outputs": [tensor]}]
    for i in range(count):
        weight, layer = [f"weight{i}", 0], [f"layer{i}", 0]
        ops += [
            {"name": f"weight{i}", "param_bytes": size, "outputs": [size], "colocation": f"pair{i}"},
            {"name": f"view{i}", "outputs": [size], "inputs": [weight]},
            {"name": f"layer{i}", "time_us": {"*": 10.0}, "outputs": [1], "inputs": [["input", 0], [f"view{i}", 0]]},
            {"name": f"grad{i}", "time_us": {"*": 10.0}, "outputs": [1], "inputs": [layer], "colocation": f"pair{i}"},
        ]
    return ops


@pytest.mark.parametrize("queueing", [True, False])
@pytest.mark.parametrize("place", [place_by_finish, place_by_start])
def test_parameters_wait_for_the_op_that_needs_them(place: Callable[..., Listed], queueing: bool) -> None:
    """Placed at time 0, where the first device is as good as any, they would draw all their gradients there."""
    problem = problem_of(branches(2), linked(alike(99, 99)), mode="inference")
    placement, _ = place(problem, hard_groups(problem), queueing, problem.graph.param_bytes.astype(float))
    assert placement.tolist() == [0, 0, 0, 0, 0, 1, 1, 1, 1]
    assert simulate(problem, placement).makespan_us == 21.0  # the input travels for 1 us


@pytest.mark.parametrize("place", [place_by_finish, place_by_start])
def test_a_parameter_takes_the_memory_of_its_group_along(place: Callable[..., Listed]) -> None:
    """Layers have no parameters themselves, and travel is free: three pairs of 8 bytes don't fit on one device."""
    graph = ComputationGraph.from_ops("branches", branches(3), "inference")
    problem = PlacementProblem(graph, linked(alike(7, 17, 9), 1e9))
    placement, _ = place(problem, hard_groups(problem), True, graph.param_bytes.astype(float))
    assert sorted(placement[2::4].tolist()) == [1, 1, 2]
    assert placement[1::4].tolist() == placement[2::4].tolist() == placement[3::4].tolist() == placement[4::4].tolist()


@pytest.mark.parametrize("place", [place_by_finish, place_by_start])
def test_a_parameter_with_a_place_has_to_travel(place: Callable[..., Listed]) -> None:
    """It is bound by the longer op; 30 us to the other device are more than the 20 us until that op ends."""
    ops = [
        {"name": "weight", "outputs": [30]},
        {"name": "long", "time_us": {"*": 20.0}, "inputs": [["weight", 0]]},
        {"name": "short", "time_us": {"*": 5.0}, "inputs": [["weight", 0]]},
        {"name": "unread", "param_bytes": 50},
    ]
    problem = problem_of(ops, linked(alike(10, 99, 99)), mode="inference")
    placement, _ = place(problem, hard_groups(problem), True, problem.graph.param_bytes.astype(float))
    assert placement.tolist() == [0, 0, 0, 1]  # what nobody reads goes where there is most room
    near = PlacementProblem(problem.graph, linked(alike(10, 99, 99), 3.0))
    placement, _ = place(near, hard_groups(near), True, problem.graph.param_bytes.astype(float))
    assert placement.tolist() == [0, 0, 1, 1]


def test_which_ops_float() -> None:
    ops = [
        {"name": "a", "outputs": [1], "colocation": "pair"},
        {"name": "view", "outputs": [1], "inputs": [["a", 0]]},
        {"name": "b", "outputs": [1]},
        {"name": "both", "outputs": [1], "inputs": [["a", 0], ["b", 0]]},  # of two groups that may go apart
        {"name": "costly", "time_us": {"*": 1.0}, "outputs": [1], "inputs": [["b", 0]], "colocation": "pair"},
        {"name": "after", "outputs": [1], "inputs": [["costly", 0], ["view", 0]]},
        {"name": "elsewhere", "inputs": [["a", 0]], "colocation": "other"},
        {"name": "mate", "inputs": [["costly", 0]], "colocation": "other"},
    ]
    problem = problem_of(ops, linked(alike(9)))
    follow = hard_groups(problem)
    floats, joined = floating_ops(problem, follow)
    assert np.flatnonzero(floats).tolist() == [0, 1, 2]
    assert joined[1] == joined[0] == follow[4]
    assert np.delete(joined, 1).tolist() == np.delete(follow, 1).tolist()
