"""A larger cluster that contains the smaller one is no worse."""

import pytest

from placeto.heuristics.local_search.part_of_cluster import FOR_HALVES, parts_to_try
from placeto.placers import load_placer
from placeto.problem.cluster import Cluster, Device, Link, Topology, load_cluster
from placeto.problem.problem import PlacementProblem
from placeto.problem.subproblem import on_devices
from placeto.simulator.evaluator import Evaluator
from placeto.simulator.schedule import simulate
from tests.toys import random_graph


def hosts() -> Cluster:
    """Four hosts of four devices, between which tensors take long."""
    devices = tuple(Device(f"gpu:{i}", "kind1", 1e6, 1e12, 10**12) for i in range(16))
    links = Topology(((4,),) * 4, island=Link(4e6, 1.0), network=Link(2e5, 20.0))
    return Cluster.from_topology("hosts", devices, links)


@pytest.mark.parametrize("name", ["multilevel", "anneal", "hillclimb", "ils", "placeto"])
def test_four_hosts_are_no_worse_than_one(name: str) -> None:
    """On four, 150 simulations found steps that were 1 to 10 % longer."""
    problem, placer = PlacementProblem(random_graph(1), hosts()), load_placer(name)
    one, four = (placer(on, simulations=150) for on in (on_devices(problem, (0, 1, 2, 3)), problem))
    assert four.makespan_us <= 1.01 * one.makespan_us
    assert simulate(problem, four.placement, order=four.order).makespan_us == four.makespan_us
    assert four.simulations == 150
    assert [us for _, _, us in four.history] == sorted((us for _, _, us in four.history), reverse=True)


def test_halves_are_tried_where_there_are_simulations_to_spare() -> None:
    problem = PlacementProblem(random_graph(0), load_cluster("4xv100"))
    assert parts_to_try(Evaluator(problem, None, FOR_HALVES - 1)) == []
    assert parts_to_try(Evaluator(problem, None, FOR_HALVES)) == [(0, 1)]
    assert parts_to_try(Evaluator(problem)) == []
