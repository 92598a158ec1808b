"""Groups of boards as devices of a cluster."""

from dataclasses import replace

import numpy as np
import pytest

from placeto.problem.cluster import ClusterError, load_cluster
from placeto.problem.cluster.groups import Ring, grouped, rings


def test_eight_boards_are_four_groups_of_two() -> None:
    boards = load_cluster("8xh100")
    groups = grouped(boards, 2)
    assert groups.device_names == ("gpu:0..gpu:1", "gpu:2..gpu:3", "gpu:4..gpu:5", "gpu:6..gpu:7")
    assert {replace(device, name="gpu:0") for device in groups.devices} == {boards.devices[0]}
    assert np.array_equal(groups.bandwidth, boards.bandwidth[::2, ::2])
    assert np.array_equal(groups.latency_us, boards.latency_us[::2, ::2])
    assert rings(boards, 2) == {"h100": Ring(boards.bandwidth[0, 1], boards.latency_us[0, 1])}
    assert grouped(boards, 1) is boards


def test_ranks_of_a_group_share_the_card_of_their_host() -> None:
    """Each host of 2x4xv100 has one card, and each of 2x8xh100 a card for each board."""
    for name, width, share in (("2x4xv100", 2, 1 / 2), ("2x4xv100", 4, 1 / 4), ("2x8xh100", 8, 1.0)):
        boards = load_cluster(name)
        groups = grouped(boards, width)
        assert groups.hosts == tuple(sorted([0, 1] * (4 if width == 1 else boards.num_devices // width // 2)))
        assert groups.bandwidth[0, -1] == share * boards.bandwidth[0, -1]
        assert groups.shared_links[0].bandwidth == share * boards.shared_links[0].bandwidth
        assert groups.shared_links[0].senders == groups.device_names[: len(groups.devices) // 2]


def test_a_group_has_its_slowest_link() -> None:
    boards = load_cluster("4xv100")
    bandwidth = np.full((4, 4), 100.0)
    bandwidth[0, 1], bandwidth[1, 3] = 50.0, 25.0
    boards = replace(boards, bandwidth=bandwidth)
    assert rings(boards, 2)["v100"].bandwidth == 50.0
    assert grouped(boards, 2).bandwidth[0, 1] == 25.0
    assert grouped(boards, 2).bandwidth[1, 0] == 100.0


def test_cpus_are_left_out() -> None:
    boards = load_cluster("cpu+1xh100")
    assert grouped(replace(boards, name="x"), 1).num_devices == 2
    with pytest.raises(ClusterError, match="has 1 boards, which can't be divided into groups of 2"):
        grouped(boards, 2)


@pytest.mark.parametrize(
    ("name", "width", "message"),
    [
        ("2x4xv100", 8, "a host of 2x4xv100 has 4 boards, which can't be divided into groups of 8"),
        ("2xv100+2xp100", 4, "would be of different boards, v100 and p100"),
    ],
)
def test_refusals(name, width, message) -> None:
    with pytest.raises(ClusterError, match=message):
        grouped(load_cluster(name), width)
