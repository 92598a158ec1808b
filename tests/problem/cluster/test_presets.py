import re
from pathlib import Path

import numpy as np
import pytest

from placeto.problem.cluster import CLUSTERS, load_cluster, save_cluster


@pytest.mark.parametrize("name", CLUSTERS)
def test_presets_load_and_round_trip_to_the_bit(name: str, tmp_path: Path) -> None:
    cluster = load_cluster(name)
    save_cluster(cluster, tmp_path / "c.json")
    again = load_cluster(tmp_path / "c.json")
    assert (again.name, again.hash) == (name, cluster.hash)
    np.testing.assert_array_equal(again.bandwidth, cluster.bandwidth)
    np.testing.assert_array_equal(again.latency_us, cluster.latency_us)


def test_k80_presets_have_the_published_constants() -> None:
    cluster = load_cluster("8xk80")
    assert cluster.device_names == tuple(f"gpu:{i}" for i in range(8))
    assert (cluster.transfers, cluster.link, cluster.link_gap_us) == ("broadcast", "egress", 25.0)
    assert set(cluster.bandwidth[~np.eye(8, dtype=bool)]) == {7600.0}
    assert not cluster.latency_us.any()
    assert set(cluster.overhead_us) == {5.7}


def test_dgx1_gives_every_gpu_six_nvlinks() -> None:
    cluster = load_cluster("8xv100")
    links = np.where(cluster.bandwidth >= 24000, cluster.bandwidth / 24000, 0)
    np.fill_diagonal(links, 0)
    np.testing.assert_array_equal(links, links.T)
    assert links.sum(axis=1).tolist() == [6.0] * 8
    np.testing.assert_array_equal(load_cluster("4xv100").bandwidth, cluster.bandwidth[:4, :4])
    quad = load_cluster("4xv100").bandwidth
    nine_megabytes_us = 9e6 / quad[~np.eye(4, dtype=bool)].mean()
    assert 200 < nine_megabytes_us < 300


def test_mixed_presets_name_devices_by_kind() -> None:
    assert load_cluster("cpu+1xh100").device_names == ("cpu:0", "gpu:0")
    assert [device.kind for device in load_cluster("2xv100+2xp100").devices] == ["v100", "v100", "p100", "p100"]


def test_hosts_of_nvlink_islands() -> None:
    v100, h100 = (4, 32000.0, 2900.0), (8, 380000.0, 45000.0)
    for name, hosts, (size, island, network) in (("2x4xv100", 2, v100), ("2x8xh100", 2, h100), ("8x8xh100", 8, h100)):
        cluster = load_cluster(name)
        host = np.arange(hosts * size) // size
        expected = np.where(host[:, None] == host, island, network)
        np.fill_diagonal(expected, np.inf)
        np.testing.assert_array_equal(cluster.bandwidth, expected)
        assert cluster.device_names == tuple(f"gpu:{i}" for i in range(hosts * size))
        assert cluster.latency_us[0, size] > cluster.latency_us[0, 1]


def test_the_file_in_the_documents_is_the_preset(tmp_path: Path) -> None:
    page = (Path(__file__).parents[3] / "docs" / "extending.md").read_text()
    (text,) = re.findall(r"```json\n(.*?)```", page, re.DOTALL)
    path = tmp_path / "mine.json"
    path.write_text(text)
    assert load_cluster(path).hash == load_cluster("2x4xv100").hash


def test_boards_have_the_memory_that_nvidia_smi_reports() -> None:
    mebibytes = {"2xrtx3090": 24576, "4xa100": 81920, "8xa100-40gb": 40960, "8xh100": 81559, "8xh200": 143771}
    assert {name: load_cluster(name).devices[0].memory / 2**20 for name in mebibytes} == mebibytes
