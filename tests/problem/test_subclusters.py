import numpy as np
import pytest

from placeto.problem.cluster import Cluster, Device
from placeto.problem.cluster_files import load_cluster
from placeto.problem.problem import PlacementProblem
from placeto.problem.subclusters import halves, on_devices, subclusters
from placeto.simulator.schedule import simulate
from tests.toys import random_graph


def test_hosts_and_kinds_are_parts() -> None:
    assert subclusters(load_cluster("2x8xh100")) == [tuple(range(8))]
    assert subclusters(load_cluster("8x8xh100")) == [tuple(range(count)) for count in (8, 16, 32)]
    assert subclusters(load_cluster("2xv100+2xp100")) == [(0, 1), (2, 3)]


@pytest.mark.parametrize("name", ["2xv100", "4xv100", "8xv100", "4xa100", "8xh100", "cpu+1xh100", "2xk80"])
def test_one_host_of_equal_devices_has_no_parts(name: str) -> None:
    assert subclusters(load_cluster(name)) == []


def test_halves_go_down_to_two_devices() -> None:
    assert halves(load_cluster("2xv100")) == []
    assert halves(load_cluster("2x8xh100")) == [(0, 1, 2, 3), (0, 1)]
    assert halves(load_cluster("8x8xh100")) == [(0, 1, 2, 3), (0, 1)]


def test_the_fastest_of_unequal_hosts_comes_first() -> None:
    devices = tuple(Device(f"d{i}", "slow" if i < 3 else "fast", 1e12 if i < 3 else 9e12, 1.0, 10) for i in range(5))
    links = np.ones((5, 5))
    links[:3, :3] = links[3:, 3:] = 10.0
    assert subclusters(Cluster("two", devices, links, np.zeros((5, 5)))) == [(3, 4), (0, 1, 2)]


@pytest.mark.parametrize("name", ["2x4xv100", "2x8xh100", "2xv100+2xp100", "8xv100", "4xk80"])
def test_a_placement_on_a_part_takes_as_long_as_on_the_whole(name: str) -> None:
    cluster, random = load_cluster(name), np.random.default_rng(0)
    for seed in range(5):
        problem = PlacementProblem(random_graph(seed), cluster)
        devices = tuple(sorted(random.choice(cluster.num_devices, int(random.integers(1, 4)), replace=False).tolist()))
        part = on_devices(problem, devices)
        placement = random.integers(len(devices), size=problem.num_ops)
        on_part, on_all = simulate(part, placement), simulate(problem, np.array(devices)[placement])
        assert on_part.makespan_us == on_all.makespan_us
        assert on_part.start_us.tolist() == on_all.start_us.tolist()
        assert on_part.peak_memory.tolist() == on_all.peak_memory[list(devices)].tolist()
