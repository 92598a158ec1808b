import numpy as np
import pytest

from placeto.heuristics.repair import repair
from placeto.problem.graph import ComputationGraph
from placeto.problem.grouping import group_ops
from placeto.problem.problem import PlacementProblem
from placeto.simulator.evaluator import Evaluator
from tests.cases import chain, devices, hourglass


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


def test_a_graph_without_edges() -> None:
    graph = ComputationGraph.from_ops("apart", [{"name": name, "flops": 10.0, "param_bytes": 60} for name in "abc"])
    assert repaired(PlacementProblem(graph, devices(250, 250, 250)), np.zeros(3, np.int64)).best_fits
