"""Solvers end soon, and don't overflow, where times differ by many orders of magnitude."""

import numpy as np
import pytest

from placeto.heuristics.baechi import favourite_children
from placeto.heuristics.exact.exact_placer import solve
from placeto.problem.cluster import Cluster, Device
from placeto.problem.graph import ComputationGraph
from placeto.problem.problem import PlacementProblem


def two_devices(bandwidth: float, latency_us: float) -> Cluster:
    devices = tuple(Device(f"d{i}", "v100", 1e13, 1e12, 16 * 10**9) for i in range(2))
    return Cluster("c", devices, np.full((2, 2), bandwidth), np.full((2, 2), latency_us))


@pytest.mark.timeout(60)
def test_the_linear_program_of_m_sct_ends_without_a_limit_in_seconds() -> None:
    """A complete bipartite graph over a slow link took the solver two minutes."""
    ops = [{"name": f"a{i}", "time_us": {"*": 1.0}, "outputs": [10**5]} for i in range(40)]
    ops += [{"name": f"b{i}", "time_us": {"*": 3.0}, "inputs": [[f"a{j}", 0] for j in range(40)]} for i in range(40)]
    problem = PlacementProblem(ComputationGraph.from_ops("g", ops), two_devices(1e-9, 1.0))
    favourites = favourite_children(problem, np.arange(80))
    assert sorted(favourites.child[:40].tolist()) == [*range(40, 80)], "greedy pairs, as the program has no result"


def test_exact_takes_times_of_a_millionth_of_a_millionth() -> None:
    pytest.importorskip("ortools")
    ops = [
        {"name": f"a{i}", "time_us": {"*": 1e-12}, "outputs": [5], "inputs": [[f"a{i - 1}", 0]] if i % 3 else []}
        for i in range(20)
    ]
    problem = PlacementProblem(ComputationGraph.from_ops("g", ops), two_devices(1e4, 1e12))
    result, bound = solve(problem, simulations=25)
    assert bound <= result.makespan_us == pytest.approx(11e-12)  # chains of three: 11 ops on one device, 9 on the other
