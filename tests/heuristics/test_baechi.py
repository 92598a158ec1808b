"""Hand-solved instances. Links carry 1 byte per us, without latency; devices have no overhead."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placeto.heuristics import HEURISTICS
from placeto.heuristics.baechi import favourite_children
from placeto.heuristics.list_scheduling import hard_groups
from placeto.problem.graph import ComputationGraph
from placeto.problem.grouping import group_ops
from placeto.problem.problem import PlacementProblem
from tests.cases import problem_of
from tests.toys import alike, linked


def solved_by_hand(ops: list[dict], memory: tuple[int, ...] = (1000, 1000)) -> PlacementProblem:
    return problem_of(ops, linked(alike(*memory)), mode="inference")


def weights(*sizes: int) -> list[dict]:
    """Independent ops of 1 us with parameters of these sizes."""
    return [{"name": f"op{i}", "time_us": {"*": 1.0}, "param_bytes": size} for i, size in enumerate(sizes)]


@pytest.mark.parametrize(
    ("memory", "sizes", "placement"),
    [
        # 12 bytes on 2 devices, the largest op 4: up to 12 / 2 + 4 = 10 each, and 4 + 3 + 2 + 1 = 10.
        ((1000, 1000), (4, 3, 2, 1, 2), [0, 0, 0, 0, 1]),
        # Shares 12 * 6 / 26 = 2.8 and 9.2. The first device would take 6.8 but has 6; the second takes the rest.
        ((6, 20), (4, 3, 2, 1, 2), [0, 1, 1, 1, 1]),
        # Shares 8 * 3 / 4 = 6 and 2, and one op of 1 more.
        ((30, 10), (1, 1, 1, 1, 1, 1, 1, 1), [0, 0, 0, 0, 0, 0, 0, 1]),
        # Caps min(4 + 3, 6) = 6: 3 + 2 on the first, 3 + 3 on the second, then 1 where there is room: on the first.
        ((6, 6), (3, 2, 3, 3, 1), [0, 0, 1, 1, 0]),
    ],
)
def test_m_topo_fills_devices_to_their_share(
    memory: tuple[int, ...], sizes: tuple[int, ...], placement: list[int]
) -> None:
    result = HEURISTICS["m-topo"](solved_by_hand(weights(*sizes), memory))
    assert result.placement.tolist() == placement
    assert result.fits


def test_favourites_are_not_the_children_of_what_floats() -> None:
    """The child of a parameter, whose tensor is the larger one, is free to be that of the op."""
    ops = [
        {"name": "weight", "outputs": [50]},
        {"name": "op", "time_us": {"*": 1.0}, "outputs": [5]},
        {"name": "child", "time_us": {"*": 1.0}, "inputs": [["weight", 0], ["op", 0]]},
    ]
    problem = solved_by_hand(ops)
    assert favourite_children(problem, hard_groups(problem)).child.tolist() == [-1, 2, -1]


def test_m_topo_goes_by_topological_order_and_counts_tensors() -> None:
    """b needs a, though it stands first. Tensors of 3 bytes: 6 / 2 + 3 = 6 would hold both, 1 + 2 bytes don't fit."""
    ops = [
        {"name": "b", "time_us": {"*": 1.0}, "outputs": [3], "inputs": [["a", 0]]},
        {"name": "a", "time_us": {"*": 1.0}, "outputs": [3]},
    ]
    assert HEURISTICS["m-topo"](solved_by_hand(ops)).placement.tolist() == [0, 0]
    assert HEURISTICS["m-topo"](solved_by_hand(ops, (5, 6))).placement.tolist() == [1, 0]


def two_chains(first_weight: int) -> PlacementProblem:
    """a -> c (4 + 5 us) and b -> d (3 + 2 us), 1 byte along each; c has 6 bytes of parameters."""
    return solved_by_hand(
        [
            {"name": "a", "time_us": {"*": 4.0}, "outputs": [1], "param_bytes": first_weight},
            {"name": "b", "time_us": {"*": 3.0}, "outputs": [1]},
            {"name": "c", "time_us": {"*": 5.0}, "inputs": [["a", 0]], "param_bytes": 6},
            {"name": "d", "time_us": {"*": 2.0}, "inputs": [["b", 0]]},
        ],
        (14, 14),
    )


@pytest.mark.parametrize("name", ["m-etf", "m-sct"])
def test_earliest_start_within_memory(name: str) -> None:
    """a has the higher rank (10 against 6): a on d0 and b on d1, both at 0.

    d can start at 3 on d1, at 4 on d0: d1, until 5. c can start at 4 on d0, at 5 on d1: d0, until 9. If a has left no
    room for c on d0 (12 + 6 > 14), c goes to d1, from 5 to 10.
    """
    roomy, tight = HEURISTICS[name](two_chains(1)), HEURISTICS[name](two_chains(12))
    assert (roomy.placement.tolist(), roomy.makespan_us) == ([0, 1, 0, 1], 9.0)
    assert (tight.placement.tolist(), tight.makespan_us, tight.fits) == ([0, 1, 1, 1], 10.0, True)


def favourite() -> PlacementProblem:
    """long needs root (3 bytes) and side (1 byte); short needs root (2 bytes); free needs nothing."""
    return solved_by_hand(
        [
            {"name": "root", "time_us": {"*": 4.0}, "outputs": [3, 2]},
            {"name": "side", "time_us": {"*": 4.0}, "outputs": [1]},
            {"name": "long", "time_us": {"*": 10.0}, "inputs": [["root", 0], ["side", 0]]},
            {"name": "short", "time_us": {"*": 3.0}, "inputs": [["root", 1]]},
            {"name": "free", "time_us": {"*": 1.0}},
        ]
    )


def test_m_sct_waits_for_the_favourite_child_where_m_etf_does_not() -> None:
    """root on d0 and side on d1, both from 0 to 4, then free, urgent, on d0 until 5. long can start at 5 on d0.

    Without free, m-ETF starts short on d0 at 4, until 7, and long only then, until 17. m-SCT keeps d0 for long: short
    isn't urgent before 6, when its input could be on d1 too, and goes there; long ends at 15.
    """
    problem = favourite()
    result = HEURISTICS["m-sct"](problem)
    assert (result.placement.tolist(), result.makespan_us) == ([0, 1, 0, 1, 0], 15.0)
    without = PlacementProblem(
        ComputationGraph.from_ops("hand", problem.graph.to_ops()[:4], mode="inference"), problem.cluster
    )
    etf, sct = HEURISTICS["m-etf"](without), HEURISTICS["m-sct"](without)
    assert (etf.placement.tolist(), etf.makespan_us) == ([0, 1, 0, 0], 17.0)
    assert (sct.placement.tolist(), sct.makespan_us) == ([0, 1, 0, 1], 15.0)


def test_favourite_children_of_the_hand_solved_program() -> None:
    """x of root -> long is 1/4: 4 + 3 x = 4 + (1 - x). By the sums those of root -> short and side -> long are 3/4."""
    problem = favourite()
    found = favourite_children(problem, hard_groups(problem))
    assert found.child.tolist() == [2, -1, -1, -1, -1]
    assert found.patience_us.tolist() == [3.0, 0.0, 0.0, 0.0, 0.0]


@given(seed=st.integers(0, 10**6), limit=st.sampled_from([0, 5000]))
@settings(max_examples=20, deadline=None)
def test_favourites_are_pairs(seed: int, limit: int) -> None:
    """Each op has one favourite at most, which is its child in another group, and is that of one parent at most."""
    rng = np.random.default_rng(seed)
    ops = []
    for i in range(int(rng.integers(1, 25))):
        parents = rng.choice(i, size=min(i, int(rng.integers(0, 4))), replace=False).tolist() if i else []
        op = {"name": f"op{i}", "time_us": {"*": float(rng.integers(0, 9))}, "outputs": [int(rng.integers(9))] * 2}
        ops.append(op | {"inputs": [[f"op{p}", int(rng.integers(2))] for p in parents]})
    problem = solved_by_hand(ops)
    group = group_ops(problem).group
    found = favourite_children(problem, group, most_ops=limit)
    parents = np.flatnonzero(found.child >= 0)
    assert (group[parents] != group[found.child[parents]]).all()
    edges = set(zip(problem.graph.edge_src.tolist(), problem.graph.edge_dst.tolist(), strict=True))
    assert {(p, int(found.child[p])) for p in parents.tolist()} <= edges
    assert len(set(found.child[parents].tolist())) == len(parents)
