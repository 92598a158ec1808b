import numpy as np
import pytest

from placeto.problem.cluster import Cluster, Device, load_cluster
from placeto.problem.cluster.subclusters import halves, subclusters


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
