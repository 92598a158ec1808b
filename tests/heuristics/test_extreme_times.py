"""Every placer copes with the shortest and longest times that a problem may have; what is beyond them is refused."""

import numpy as np
import pytest

from placeto.errors import GraphError
from placeto.heuristics import HEURISTICS
from placeto.problem.cluster import Device
from placeto.problem.problem import PlacementProblem
from tests.cases import problem_of
from tests.toys import linked

SHORT, LONG = 1e-12, 1e16


def problem(*times: float, rate: float = 1.0) -> PlacementProblem:
    """Twelve ops that read the two before; op i takes ``times[(i + d) % len(times)]`` on device d."""
    ops = []
    for i in range(12):
        measured = {f"k{d}": times[(i + d) % len(times)] for d in range(3)}
        inputs = [[f"op{j}", 0] for j in (i - 1, i - 2) if j >= 0]
        ops.append({"name": f"op{i}", "outputs": [100], "inputs": inputs, "time_us": measured})
    devices = tuple(Device(f"gpu:{d}", f"k{d}", 1e6, 1e12, 10**12) for d in range(3))
    return problem_of(ops, linked(devices, rate, "extreme"))


CASES = {
    "all short": problem(SHORT),
    "all long": problem(LONG),
    "no time": problem(0.0),
    "one device fast": problem(SHORT, LONG, LONG),
    "mixed": problem(SHORT, LONG, 1.0, 0.0),
    "slow links": problem(1.0, rate=1e-14),
    "fast links": problem(1.0, rate=1e300),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", HEURISTICS)
def test_placers_cope(name: str, case: str) -> None:
    result = HEURISTICS[name](CASES[case], simulations=60, seed=0)
    assert CASES[case].lower_bound_us * (1 - 1e-9) <= result.makespan_us < np.inf


@pytest.mark.parametrize("time", [5e-324, 1e-13, 1.1e18, 1e308])
def test_times_beyond_are_refused(time: float) -> None:
    with pytest.raises(GraphError, match="op 'op0': its time on cluster 'extreme' must be 0, or from 1e-12 to 1e"):
        problem(time)


def test_makespans_beyond_are_refused() -> None:
    with pytest.raises(GraphError, match="graph 'ops': its makespan on cluster 'extreme' may be more than 1e"):
        problem(1e17)
    with pytest.raises(GraphError, match="graph 'ops': its makespan on cluster 'extreme' may be more than 1e"):
        problem(1.0, rate=1e-300)
