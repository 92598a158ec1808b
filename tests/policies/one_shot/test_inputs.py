import dataclasses
import math

import numpy as np
import pytest
import torch

from placeto.policies.one_shot.inputs import (
    FEW_GROUPS,
    NEIGHBOURS,
    STRETCHES,
    UNIT_FEATURES,
    decision_units,
    make_input,
)
from placeto.problem.costs import ROOFLINE
from placeto.problem.grouping import group_ops
from placeto.problem.problem import PlacementProblem
from tests.cases import problem_of, toy_problem
from tests.toys import fork_of_chains, toy_cluster, two_cliques, work


def diamond() -> PlacementProblem:
    """a feeds b (100 bytes) and c (10 bytes); d reads both; a free op v reads b; p and c are co-located."""
    ops = [
        {"name": "a", "type": "mm", "flops": 10.0, "outputs": [100, 10]},
        {"name": "b", "type": "relu", "flops": 20.0, "outputs": [50], "inputs": [["a", 0]]},
        {"name": "c", "type": "relu", "flops": 30.0, "outputs": [7], "inputs": [["a", 1]], "colocation": "x"},
        {"name": "v", "type": "view", "flops": 0.0, "outputs": [50], "inputs": [["b", 0]]},
        {"name": "p", "type": "mm", "flops": 5.0, "outputs": [1], "colocation": "x"},
        {"name": "d", "type": "add", "flops": 40.0, "outputs": [1], "inputs": [["v", 0], ["c", 0]]},
    ]
    return problem_of(ops, toy_cluster(2, speeds=(1.0, 0.5)), costs=ROOFLINE)


def column(graph, name):
    return graph.features[:, UNIT_FEATURES.index(name)]


def test_ops_stay_alone_but_for_co_location_and_free_ops() -> None:
    assert decision_units(diamond(), "ops").tolist() == [0, 1, 2, 1, 2, 3]


def test_the_papers_rule_joins_what_has_one_reader() -> None:
    """b (with v) is read by d alone, then c too; then all that a feeds is one unit, and a joins it."""
    assert decision_units(diamond(), "paper").tolist() == [0] * 6
    assert decision_units(fork_of_chains(3, 4), "paper").tolist() == [c for c in range(3) for _ in range(4)]
    cliques = decision_units(two_cliques(), "paper")
    assert cliques.tolist() == [0] + 5 * [1] + 6 * [2]  # a0 has two readers


def test_few_units_are_groups_or_where_there_are_many_stretches_of_the_order() -> None:
    problem = toy_problem(0, 90, 2)
    assert np.array_equal(decision_units(problem, "few"), group_ops(problem).group)
    problem = fork_of_chains(65, 2)
    assert group_ops(problem).num_groups == 130 > FEW_GROUPS
    unit = decision_units(problem, "few")[problem.graph.topological_order]
    assert (np.diff(unit) >= 0).all()
    assert set(np.bincount(unit)) == {4, 5}
    assert len(np.bincount(unit)) == STRETCHES


def test_units_are_numbered_by_their_first_op_in_topological_order() -> None:
    for kind in ("ops", "paper", "groups", "few"):
        problem = toy_problem(3, 40, 2)
        unit = decision_units(problem, kind)[problem.graph.topological_order]
        firsts = [unit.tolist().index(u) for u in range(unit.max() + 1)]
        assert firsts == sorted(firsts)


def test_columns_in_closed_form() -> None:
    graph = make_input(diamond(), "ops")
    assert (graph.num_units, graph.num_devices) == (4, 2)
    # op times are flops on the first device and twice that on the second
    torch.testing.assert_close(column(graph, "time"), torch.log1p(torch.tensor([15.0, 30.0, 52.5, 60.0])) / 10)
    torch.testing.assert_close(column(graph, "outputs"), torch.log1p(torch.tensor([110.0, 100.0, 8.0, 1.0])) / 20)
    torch.testing.assert_close(column(graph, "transfer"), torch.log1p(torch.tensor([110.0, 50.0, 7.0, 0.0])) / 10)
    torch.testing.assert_close(column(graph, "producers"), torch.log1p(torch.tensor([0.0, 1.0, 1.0, 2.0])) / 3)
    torch.testing.assert_close(column(graph, "consumers"), torch.log1p(torch.tensor([2.0, 1.0, 1.0, 0.0])) / 3)
    torch.testing.assert_close(column(graph, "position"), torch.tensor([0.0, 1 / 3, 2 / 3, 1.0]))
    assert set(zip(*graph.edges.tolist(), strict=True)) == {(0, 1), (0, 2), (1, 3), (2, 3)}
    torch.testing.assert_close(graph.pair[0], torch.tensor([math.log(10 / 15), math.log(20 / 15)]))
    torch.testing.assert_close(graph.device[:, 0], torch.tensor([1.0, 0.5]))


def test_delays_are_what_transfers_take_beyond_the_slack_of_their_readers() -> None:
    """The longest path is a, c, d. In the mean of both devices, b takes 30 us and c 45 us, so that b has 15 us."""
    graph = make_input(diamond(), "ops")
    delays = dict(zip(zip(*graph.edges.tolist(), strict=True), (105 * graph.delay).tolist(), strict=True))
    assert delays == pytest.approx({(0, 1): 100 - 15, (0, 2): 10, (1, 3): 50 - 15, (2, 3): 7}, rel=1e-5)


def test_neighbours_with_the_largest_tensors_come_first() -> None:
    graph = make_input(diamond(), "ops")
    assert graph.neighbours[0, :NEIGHBOURS].tolist() == [-1.0] * NEIGHBOURS
    producers, consumers = graph.neighbours[3, :2], graph.neighbours[0, NEIGHBOURS : NEIGHBOURS + 3]
    torch.testing.assert_close(producers, torch.tensor([1 / 3, 2 / 3]))
    torch.testing.assert_close(consumers, torch.tensor([1 / 3, 2 / 3, -1.0]))


def test_at_most_so_many_neighbours() -> None:
    ops = [{"name": f"s{i}", "flops": 1.0, "outputs": [i + 1]} for i in range(9)]
    ops.append({"name": "t", "flops": 1.0, "inputs": [[f"s{i}", 0] for i in range(9)]})
    graph = make_input(problem_of(ops, 2), "ops")
    assert graph.neighbours[9, :NEIGHBOURS].tolist() == pytest.approx([i / 9 for i in (8, 7, 6, 5, 4, 3)])


def test_all_values_are_finite_and_move_together() -> None:
    problem = toy_problem(1, 30, 3)
    graph = make_input(problem, "ops").to("cpu")
    for field in dataclasses.fields(graph):
        value = getattr(graph, field.name)
        assert torch.isfinite(value.double()).all(), field.name
    assert np.array_equal(graph.unit.numpy(), decision_units(problem, "ops"))


def test_what_can_be_added_up_has_units() -> None:
    """a (10 us) feeds b (30 us) with 100 bytes; c (20 us, 1,000 bytes of parameters) is alone: 60 us on one device."""
    ops = [
        {"name": "a", "type": "op", **work(10.0), "outputs": [100]},
        {"name": "b", "type": "op", **work(30.0), "outputs": [1], "inputs": [["a", 0]]},
        {"name": "c", "type": "op", **work(20.0), "outputs": [1], "param_bytes": 1000},
    ]
    problem = problem_of(ops, toy_cluster(2, speeds=(1.0, 0.5), memory=10**5))
    graph = make_input(problem, "ops")
    time = torch.tensor([10.0, 30.0, 20.0]) / 60
    torch.testing.assert_close(graph.time, torch.stack([time, 2 * time], 1))
    torch.testing.assert_close(graph.transfer, torch.tensor([100.0 / 60]))
    torch.testing.assert_close(graph.links, torch.tensor([[0.0, 1.0], [1.0, 0.0]]))
    resident = torch.tensor(problem.resident_bytes.tolist(), dtype=torch.float32)
    torch.testing.assert_close(graph.memory[:, 1], torch.stack([resident, torch.tensor([100.0, 1.0, 1.0])], 1) / 10**5)
    expected = torch.zeros_like(graph.profile)
    for unit, starts in enumerate([(0, 0), (4, 4), (0, 8)]):  # in sixteenths of 40 us: at the earliest, at the latest
        expected[unit, [0, 1], starts] = time[unit]
    torch.testing.assert_close(graph.profile, expected)
