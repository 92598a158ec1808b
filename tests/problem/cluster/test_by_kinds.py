"""Clusters that are named by numbers of boards."""

import numpy as np
import pytest

from placeto.errors import ClusterError
from placeto.problem.cluster import load_cluster, of_kinds
from placeto.problem.cluster.boards import NVIDIA
from placeto.problem.cluster.by_kinds import KINDS


def test_all_kinds_of_gpus_may_be_counted() -> None:
    assert set(KINDS) == set(NVIDIA)
    for kind in KINDS:
        cluster = load_cluster(f"3x{kind}")
        assert [device.kind for device in cluster.devices] == [kind] * 3
        assert cluster.device_names == ("gpu:0", "gpu:1", "gpu:2")


def test_more_boards_have_the_same_links_if_each_sends_by_itself() -> None:
    made = of_kinds("4xrtx3090")
    assert made[1] == "4xrtx3090 is no preset: its links are assumed, with 12 GB/s or more"
    assert set(np.unique(made[0].bandwidth[~np.eye(4, dtype=bool)]).tolist()) == {12e3}  # bytes/us
    with pytest.raises(ClusterError, match=r"^6xa100: no preset says how more than 4 a100 are linked: write a cluster"):
        load_cluster("6xa100")
    with pytest.raises(ClusterError, match=r"^16xh100: a host has 8 boards at most: write a cluster file"):
        load_cluster("16xh100")


def test_between_kinds_is_the_slower_slot() -> None:
    cluster = load_cluster("2xh100+1xl4+1xv100")
    assert cluster.bandwidth[0, 1] == 380e3
    assert cluster.bandwidth[0, 2] == cluster.bandwidth[2, 0] == 24e3
    assert cluster.bandwidth[0, 3] == cluster.bandwidth[2, 3] == 12e3
    assert cluster.link == "egress"


@pytest.mark.parametrize(
    "name", ["0xv100", "v100", "2xv100+", "2xv100+1xv100", "2xcpu", "1xk80+1xv100", "2xq100", "0xh100+1xl4"]
)
def test_other_names_are_unknown(name: str) -> None:
    assert of_kinds(name) is None
    with pytest.raises(ClusterError, match="unknown cluster"):
        load_cluster(name)


def test_a_misspelt_preset_is_guessed() -> None:
    with pytest.raises(ClusterError, match=r"^unknown cluster '4xv10'; did you mean 4xv100\? Presets are 2xk80, "):
        load_cluster("4xv10")
