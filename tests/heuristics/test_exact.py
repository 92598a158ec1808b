"""`exact` against brute force and known optima: no placer beats it, and its bound holds."""

import sys
from dataclasses import replace

import numpy as np
import pytest

from placeto.errors import PlacerError
from placeto.heuristics import HEURISTICS
from placeto.heuristics.exact.exact_placer import MAX_GROUPS, solve
from placeto.problem.cluster import Cluster, load_cluster
from placeto.problem.graph import ComputationGraph
from placeto.problem.grouping import group_ops
from placeto.problem.problem import PlacementProblem
from placeto.simulator.schedule import simulate
from tests.cases import problem_of, toy_problem, with_devices
from tests.heuristics.test_bounds import optimum
from tests.toys import fork_of_chains, random_graph, toy_cluster, two_cliques


def brute_force(problem: PlacementProblem) -> float:
    """Least makespan of all placements of groups that fit, in microseconds."""
    best, some_fit = optimum(problem, group_ops(problem).group)
    return best if some_fit else np.inf


def solve_by_constraints(problem: PlacementProblem, **budget: float) -> tuple[float, float]:
    """Makespan and bound without enumeration."""
    pytest.importorskip("ortools", reason='needs the extra "exact"')
    result, bound = solve(problem, enumerate_up_to=0, **budget)
    assert result.makespan_us == simulate(problem, result.placement).makespan_us
    return result.makespan_us, bound


def small_problem(seed: int, ops: int, cluster: Cluster) -> PlacementProblem:
    """A random graph whose transfers take about as long as its ops."""
    rng = np.random.default_rng(seed)
    rate = float(np.median(cluster.bandwidth[np.isfinite(cluster.bandwidth)])) if cluster.num_devices > 1 else 1.0
    records = random_graph(seed, ops).to_ops()
    for record in records:
        record["time_us"] = {"*": float(rng.integers(1, 9)) * 5.0}
        record["outputs"] = [int(rate * rng.integers(1, 9) * 5.0) for _ in record["outputs"]]
    return problem_of(records, cluster)


def mixed_cluster() -> Cluster:
    """Two devices of unequal speed, overhead and links."""
    slow = toy_cluster(2, speeds=(1.0, 0.5))
    devices = (slow.devices[0], replace(slow.devices[1], overhead_us=3.0))
    return replace(slow, devices=devices, latency_us=np.array([[0.0, 4.0], [9.0, 0.0]]), link_gap_us=2.0, link="pair")


def test_launches_are_refused_unless_all_placements_are_simulated() -> None:
    problem = small_problem(0, 4, with_devices(toy_cluster(2), launch_us=7.0))
    result, _ = solve(problem)
    assert result.makespan_us == brute_force(problem)
    with pytest.raises(PlacerError, match=r"launch ops \(launch_us\), which the placer exact doesn't count"):
        solve(problem, enumerate_up_to=0)


CLUSTERS = {
    "toy": toy_cluster(2),
    "mixed": mixed_cluster(),
    "broadcast": load_cluster("2xk80"),
    "unequal broadcast": replace(
        toy_cluster(3), bandwidth=np.array([[1, 1, 0.25], [1, 1, 1], [0.5, 1, 1.0]]), transfers="broadcast"
    ),
    "pcie": load_cluster("2xp100"),
}


@pytest.mark.parametrize("name", CLUSTERS)
@pytest.mark.parametrize("seed", range(4))
def test_equals_brute_force(seed: int, name: str) -> None:
    problem = small_problem(seed, 6 if CLUSTERS[name].num_devices == 2 else 5, CLUSTERS[name])
    best = brute_force(problem)
    result, bound = solve(problem)
    assert (result.makespan_us, bound) == (best, best)
    makespan, bound = solve_by_constraints(problem)
    assert makespan == pytest.approx(best, rel=2e-5)
    assert bound == makespan


def test_known_optima_by_constraints() -> None:
    assert solve_by_constraints(two_cliques(6)) == (71.0, 71.0)
    assert solve_by_constraints(fork_of_chains(6, 5, devices=3)) == (100.0, 100.0)


def test_proves_what_enumeration_cannot() -> None:
    problem = small_problem(2, 12, load_cluster("4xk80"))
    assert problem.num_devices ** group_ops(problem).num_groups > 10**7
    makespan, bound = solve_by_constraints(problem)
    assert bound == makespan > problem.lower_bound_us


def test_memory_is_respected() -> None:
    # Four ops of 100 bytes of parameters, 400 with gradients and optimizer state: two fit on a device, none alone.
    ops = [{"name": n, "time_us": {"*": 10.0}, "param_bytes": 100} for n in "abcd"]
    ops += [{"name": "e", "time_us": {"*": 100.0}, "param_bytes": 1, "inputs": []}]
    graph = ComputationGraph.from_ops("heavy", ops)
    problem = PlacementProblem(graph, toy_cluster(2, memory=810))
    result, bound = solve(problem)
    assert result.fits
    assert (result.makespan_us, bound) == (120.0, 120.0)
    assert solve_by_constraints(problem) == (120.0, 120.0)


def test_budgets_are_kept() -> None:
    pytest.importorskip("ortools", reason='needs the extra "exact"')
    problem = small_problem(0, 12, load_cluster("4xp100"))
    for simulations in (0, 1, 7):
        assert HEURISTICS["exact"](problem, simulations=simulations).simulations <= simulations
    result, bound = solve(problem, seconds=1.0)
    assert result.seconds < 2.0
    assert problem.lower_bound_us <= bound <= result.makespan_us
    assert [m for _, _, m in result.history] == sorted((m for _, _, m in result.history), reverse=True)
    few, bound = solve(two_cliques(6), simulations=100)
    assert few.simulations == 100
    assert bound == two_cliques(6).lower_bound_us, "an enumeration that was cut short proves nothing"
    assert solve(two_cliques(5))[0].simulations == 2**10, "all placements, in several batches"


def test_too_large() -> None:
    problem = toy_problem(0, MAX_GROUPS + 6, 2)
    with pytest.raises(PlacerError, match=f"'random0' has {MAX_GROUPS + 6} groups"):
        HEURISTICS["exact"](problem)


def test_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ortools.sat.python.cp_model", None)
    with pytest.raises(PlacerError, match="needs OR-tools: pip install ortools"):
        HEURISTICS["exact"](toy_problem(0, 20, 2))
    assert HEURISTICS["exact"](two_cliques(4)).makespan_us == 51.0, "enumeration does without"
