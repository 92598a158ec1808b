import pickle
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from placeto.errors import CostsError, GraphError
from placeto.problem.cluster import Cluster, load_cluster
from placeto.problem.costs import EFFICIENCY, ROOFLINE
from placeto.problem.graph import ComputationGraph
from placeto.problem.problem import PlacementProblem
from placeto.simulator.schedule import simulate

OPS = [
    {"name": "a", "flops": 15.7e6, "bytes_accessed": 9e5, "outputs": [4]},
    {"name": "b", "flops": 15.7e6, "bytes_accessed": 9e6, "inputs": [["a", 0]]},
    {"name": "c", "flops": 1e12, "time_us": {"v100": 3.0}},
]
GRAPH = ComputationGraph.from_ops("three", OPS)


@dataclass(frozen=True)
class Given:
    """A model that returns what it was given, or so many microseconds for every op."""

    times: Any
    name: Any = "given"

    def op_time_us(self, graph: ComputationGraph, cluster: Cluster) -> Any:
        if isinstance(self.times, float):
            return np.full((graph.num_ops, cluster.num_devices), self.times)
        return self.times


def test_what_is_measured_goes_before_any_model() -> None:
    for costs, expected in ((ROOFLINE, [1.0, 10.0, 3.0]), (Given(7.0), [7.0, 7.0, 3.0])):
        problem = PlacementProblem(GRAPH, load_cluster("2xv100"), costs)
        np.testing.assert_allclose(problem.op_time[:, 0], expected)
        assert simulate(problem, np.zeros(3, np.int64)).makespan_us == pytest.approx(sum(expected) + 3 * 5.0)
    ops = [{"name": dtype, "flops": 156e6, "dtype": dtype} for dtype in ("float32", "tf32", "bfloat16")]
    times = ROOFLINE.op_time_us(ComputationGraph.from_ops("g", ops), load_cluster("4xa100"))
    np.testing.assert_allclose(times[:, 0], [8.0, 1.0, 0.5])  # the peak is that of the dtype


def test_costs_are_part_of_a_problems_identity() -> None:
    cluster = load_cluster("2xv100")
    problems = [PlacementProblem(GRAPH, cluster, costs) for costs in (ROOFLINE, Given(7.0, "7"), Given(8.0, "8"))]
    assert len({problem.hash for problem in problems}) == 3
    assert PlacementProblem(GRAPH, load_cluster("2xv100"), ROOFLINE).hash == problems[0].hash
    assert PlacementProblem(GRAPH, load_cluster("2xp100"), ROOFLINE).hash != problems[0].hash
    assert PlacementProblem(GRAPH, cluster).costs == EFFICIENCY
    again = pickle.loads(pickle.dumps(problems[1]))
    assert again.costs == Given(7.0, "7")
    assert again.hash == problems[1].hash


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        (Given(np.ones((2, 3))), CostsError, r"'given': .*shape \(3, 2\), a row for each .*, not shape \(2, 3\)"),
        (Given([[1.0, 1.0]] * 3), CostsError, r"'given': .*shape \(3, 2\), .* not list"),
        (Given(np.full((3, 2), "1")), CostsError, "'given': .*not shape .* of <U1"),
        (Given(np.array([[1, 1], [1, 1], [1, -2]])), CostsError, "of op 'c' on device 'gpu:1' must be at least 0, not"),
        (Given(float("nan")), GraphError, "op 'a': its time on cluster '2xv100' must be 0, or from"),
        (Given(1.0, name=None), TypeError, "must have a name, a text that no other cost model has"),
    ],
)
def test_what_is_no_cost_model_or_no_time_is_refused(given: Given, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        PlacementProblem(GRAPH, load_cluster("2xv100"), given)


def test_whole_numbers_are_times() -> None:
    problem = PlacementProblem(GRAPH, load_cluster("2xv100"), Given(np.full((3, 2), 7)))
    assert problem.op_time.dtype == np.float64
    assert problem.op_time[:, 0].tolist() == [7.0, 7.0, 3.0]
