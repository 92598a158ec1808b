from typing import Any

import numpy as np
import pytest

from placeto.errors import ClusterError
from placeto.problem.checks import checked, record_of
from placeto.problem.cluster import Cluster, Device, Link, Topology

DOCUMENT: dict[str, Any] = {
    "hosts": [[2, 1], [1]],
    "island": {"bandwidth": 4, "latency_us": 1},
    "host": {"bandwidth": 2, "latency_us": 2},
    "network": {"bandwidth": 1, "latency_us": 3},
}


def topology_of(document: Any) -> Topology:
    return Topology(**checked(document, record_of(Topology), ClusterError, "topology"))


def test_each_pair_has_the_link_of_the_closest_level() -> None:
    bandwidth, latency_us = topology_of(DOCUMENT).matrices(4)
    np.testing.assert_array_equal(bandwidth, [[0, 4, 2, 1], [4, 0, 2, 1], [2, 2, 0, 1], [1, 1, 1, 0]])
    np.testing.assert_array_equal(latency_us, [[0, 1, 2, 3], [1, 0, 2, 3], [2, 2, 0, 3], [3, 3, 3, 0]])


@pytest.mark.parametrize(
    ("hosts", "links"),
    [
        ([[1]], ()),
        ([[3]], ("island",)),
        ([[1, 1]], ("host",)),
        ([[1], [1]], ("network",)),
        ([[2, 2]], ("island", "host")),
    ],
)
def test_links_that_join_nothing_may_be_left_out(hosts: list[list[int]], links: tuple[str, ...]) -> None:
    topology = topology_of({"hosts": hosts} | {level: DOCUMENT[level] for level in links})
    devices = [Device(f"d{i}", "x", 1.0, 1.0, 1) for i in range(sum(hosts[0]) + (len(hosts) - 1))]
    cluster = Cluster.from_topology("c", devices, topology)
    used = {DOCUMENT[level]["bandwidth"] / 1e6 for level in links}
    assert set(cluster.bandwidth[~np.eye(len(devices), dtype=bool)]) == used
    for level in links:
        fewer = {"hosts": hosts} | {other: DOCUMENT[other] for other in links if other != level}
        with pytest.raises(ClusterError, match=f"topology: {level} is missing, the link where"):
            topology_of(fewer)


def test_the_islands_hold_all_devices() -> None:
    device = Device("d", "x", 1.0, 1.0, 1)
    with pytest.raises(ClusterError, match="topology: hosts has room for 4 devices, but there are 1"):
        Cluster.from_topology("c", [device], topology_of(DOCUMENT))


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({}, r"topology\.hosts is missing"),
        (DOCUMENT | {"hosts": []}, r"topology\.hosts must have at least 1 item"),
        (DOCUMENT | {"host": {"bandwidth": 0}}, r"topology\.host\.bandwidth must be > 0, not 0"),
    ],
)
def test_mistakes_are_refused_in_one_sentence(document: Any, message: str) -> None:
    with pytest.raises(ClusterError, match=message) as refusal:
        topology_of(document)
    assert "\n" not in str(refusal.value)


def test_a_topology_can_be_compared_and_hashed() -> None:
    assert Topology([[1]]) == Topology(((1,),))  # type: ignore[arg-type]
    assert hash(Topology(((1,), (1,)), network=Link(1.0))) == hash(Topology(((1,), (1,)), network=Link(1.0)))
