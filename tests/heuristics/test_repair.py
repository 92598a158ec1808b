import numpy as np
import pytest

from placeto.heuristics.repair import _Links, _relieve, _traffic, repair
from placeto.problem.graph import ComputationGraph
from placeto.problem.grouping import group_ops
from placeto.problem.grouping.coarsening import transfer_us
from placeto.problem.problem import PlacementProblem
from placeto.simulator.evaluator import Evaluator
from tests.heuristics.test_memory_limits import chain, devices, hourglass
from tests.toys import random_graph


def repaired(problem: PlacementProblem, placement: np.ndarray, simulations: int | None = None) -> Evaluator:
    """What is known after a placement (N,) that doesn't fit was repaired."""
    evaluator = Evaluator(problem, group_ops(problem), simulations)
    evaluator.score_ops(placement)
    assert not evaluator.best_fits
    repair(evaluator)
    return evaluator


@pytest.mark.parametrize("start", [0, 1])
def test_what_is_too_much_moves(start: int) -> None:
    problem = PlacementProblem(chain(*[100] * 10, output=5), devices(300, 900))
    evaluator = repaired(problem, np.full(problem.num_ops, start))
    assert evaluator.best_fits
    assert evaluator.simulations <= 1 + 2 * 2 + 8


def test_readers_go_along_with_what_they_read() -> None:
    problem = PlacementProblem(hourglass(8, 100), devices(600, 600))
    assert repaired(problem, np.zeros(problem.num_ops, np.int64)).best_fits


def test_two_groups_change_places() -> None:
    """60 and 40 of 110 bytes, 70 of 60: no single move helps, since all the memory is needed."""
    problem = PlacementProblem(chain(60, 40, 70), devices(110, 60))
    assert repaired(problem, np.array([0, 0, 1])).result().placement.tolist() == [1, 0, 0]


def test_the_budget_is_kept() -> None:
    problem = PlacementProblem(chain(60, 60, 60), devices(100, 100))
    evaluator = repaired(problem, np.array([0, 0, 1]), simulations=2)
    assert (evaluator.simulations, evaluator.best_fits) == (2, False)


def test_traffic_is_kept_up_to_date_as_units_move(monkeypatch: pytest.MonkeyPatch) -> None:
    """What moves costs as much as its own edges, and no sum is made over all edges again."""
    problem = PlacementProblem(random_graph(3, 80), devices(10**6, 10**6, 10**6))
    rng = np.random.default_rng(0)
    evaluator, placement = Evaluator(problem), rng.integers(3, size=80)
    tables = []

    def watched(links: _Links, device: np.ndarray, num_devices: int) -> np.ndarray:
        tables.append((links, device, _traffic(links, device, num_devices)))
        return tables[-1][2]

    monkeypatch.setattr("placeto.heuristics.repair._traffic", watched)
    peak = np.bincount(placement, minlength=3).astype(float)
    moved = _relieve(evaluator, placement, np.ones(80), peak, np.array([74.0, 3.0, 3.0]))
    assert np.bincount(moved).tolist() == [74, 3, 3]
    ((links, device, traffic),) = tables
    np.testing.assert_allclose(traffic, _traffic(links, device, 3), atol=1e-6)
    src, dst = problem.graph.edge_src, problem.graph.edge_dst
    travel = transfer_us(problem)[problem.graph.edge_tensor]
    expected = np.zeros((80, 3))
    np.add.at(expected, (src, moved[dst]), travel)
    np.add.at(expected, (dst, moved[src]), travel)
    np.testing.assert_allclose(traffic[evaluator.groups.group], expected, atol=1e-6)  # a unit is a group here


def test_a_graph_without_edges() -> None:
    graph = ComputationGraph.from_ops("apart", [{"name": name, "flops": 10.0, "param_bytes": 60} for name in "abc"])
    assert repaired(PlacementProblem(graph, devices(250, 250, 250)), np.zeros(3, np.int64)).best_fits
