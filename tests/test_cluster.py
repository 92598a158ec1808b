from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from placeto.cluster import CLUSTERS, Cluster, ClusterError, Device, load_cluster, save_cluster

DEVICE = {"name": "gpu:0", "kind": "p100", "flops": 9.5e12, "memory_bandwidth": 7.3e11, "memory": 16e9}
DOCUMENT: dict[str, Any] = {
    "format": "placeto.cluster/1",
    "name": "mine",
    "transfers": "broadcast",
    "link": "egress",
    "devices": [{**DEVICE, "overhead_us": 5.0}, {**DEVICE, "name": "gpu:1"}],
    "bandwidth": [[0, 12e9], [6e9, None]],
    "latency_us": [[99, 1], [2, 99]],
    "link_gap_us": 3.0,
}


def _load(tmp_path: Path, document: dict[str, Any]) -> Cluster:
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(document))
    return load_cluster(path)


def test_file_values_in_bytes_per_second_become_bytes_per_us(tmp_path: Path) -> None:
    cluster = _load(tmp_path, DOCUMENT)
    assert (cluster.name, cluster.transfers, cluster.link, cluster.link_gap_us) == ("mine", "broadcast", "egress", 3.0)
    assert cluster.devices[0] == Device("gpu:0", "p100", 9.5e12, 7.3e11, 16 * 10**9, 5.0)
    assert cluster.overhead_us.tolist() == [5.0, 0.0]
    np.testing.assert_array_equal(cluster.memory, np.array([16 * 10**9] * 2, np.int64))
    np.testing.assert_array_equal(cluster.bandwidth, [[np.inf, 12000.0], [6000.0, np.inf]])  # diagonals are ignored
    np.testing.assert_array_equal(cluster.latency_us, [[0, 1], [2, 0]])


def test_optional_fields_may_be_left_out_and_one_number_stands_for_all_pairs(tmp_path: Path) -> None:
    document = {key: DOCUMENT[key] for key in ("format", "devices")} | {"bandwidth": 12e9}
    cluster = _load(tmp_path, document)
    assert (cluster.name, cluster.transfers, cluster.link, cluster.link_gap_us) == ("mine", "unicast", "egress", 0.0)
    np.testing.assert_array_equal(cluster.bandwidth, [[np.inf, 12000.0], [12000.0, np.inf]])
    np.testing.assert_array_equal(cluster.latency_us, np.zeros((2, 2)))


def test_ranks_order_names_as_strings() -> None:
    devices = tuple(Device(f"/gpu:{n}", "x", 1.0, 1.0, 1) for n in (2, 10, 0))
    cluster = Cluster("c", devices, np.ones((3, 3)), np.zeros((3, 3)))
    assert cluster.device_rank.tolist() == [2, 1, 0]  # '/gpu:0' < '/gpu:10' < '/gpu:2'


@pytest.mark.parametrize("name", CLUSTERS)
@pytest.mark.parametrize("suffix", [".json", ".json.gz"])
def test_presets_load_and_round_trip_to_the_bit(name: str, suffix: str, tmp_path: Path) -> None:
    cluster, path = load_cluster(name), tmp_path / f"c{suffix}"
    save_cluster(cluster, path)
    again = load_cluster(path)
    assert cluster.name == again.name == name
    assert again.devices == cluster.devices
    assert (again.transfers, again.link, again.link_gap_us) == (cluster.transfers, cluster.link, cluster.link_gap_us)
    np.testing.assert_array_equal(again.bandwidth, cluster.bandwidth)
    np.testing.assert_array_equal(again.latency_us, cluster.latency_us)


@pytest.mark.parametrize(("name", "size"), [("2xk80", 2), ("4xk80", 4), ("8xk80", 8)])
def test_k80_presets_have_the_published_constants(name: str, size: int) -> None:
    cluster = load_cluster(name)
    assert cluster.device_names == tuple(f"gpu:{i}" for i in range(size))
    assert (cluster.transfers, cluster.link, cluster.link_gap_us) == ("broadcast", "egress", 25.0)
    off_diagonal = ~np.eye(size, dtype=bool)
    assert set(cluster.bandwidth[off_diagonal]) == {7600.0}
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


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "placeto.graph/1"}, '"format" must be "placeto.cluster/1"'),
        ({"bandwith": 1}, "unknown field 'bandwith'"),
        ({"devices": []}, "a cluster needs at least one device"),
        ({"devices": {}}, "devices must be a list of objects"),
        ({"devices": [DEVICE, DEVICE]}, "duplicate name 'gpu:0'"),
        ({"devices": [DEVICE, {**DEVICE, "name": "b", "speed": 1}]}, "device 'b': unknown field 'speed'"),
        ({"devices": [DEVICE, {"name": "b", "flops": 1}]}, "device 'b': memory is missing"),
        ({"devices": [DEVICE, {**DEVICE, "name": 7}]}, "device 7: name and kind must be strings"),
        ({"devices": [DEVICE, {**DEVICE, "name": "b", "flops": 0}]}, "device 'b': flops must be a finite number > 0"),
        ({"devices": [DEVICE, {**DEVICE, "name": "b", "flops": "9"}]}, "device 'b': flops must be a finite number > 0"),
        ({"devices": [DEVICE, {**DEVICE, "name": "b", "memory": 1.5}]}, "device 'b': memory must be whole bytes"),
        ({"devices": [DEVICE, {**DEVICE, "name": "b", "memory": 1e30}]}, "device 'b': memory must be .* int64"),
        ({"devices": [DEVICE, {**DEVICE, "name": "b", "overhead_us": -1}]}, "overhead_us must be .* >= 0, not -1"),
        ({"bandwidth": [[0, 1, 1], [1, 0, 1]]}, "bandwidth must be a 2 x 2 matrix"),
        ({"bandwidth": [[0, 1], [1, 0], [1, 1]]}, "bandwidth must be a 2 x 2 matrix.* 3 rows"),
        ({"bandwidth": "fast"}, "bandwidth must be a 2 x 2 matrix"),
        ({"bandwidth": [[0, "a"], [1, 0]]}, r"bandwidth\[0\]\[1\] must be a number, not 'a'"),
        ({"bandwidth": [[0, 1], [0, 0]]}, "bandwidth from 'gpu:1' to 'gpu:0' must be finite and > 0, not 0"),
        ({"bandwidth": [[0, float("nan")], [1, 0]]}, "bandwidth from 'gpu:0' to 'gpu:1' must be finite"),
        ({"bandwidth": float("inf")}, "bandwidth from 'gpu:0' to 'gpu:1' must be finite"),
        ({"latency_us": [[0, -1], [1, 0]]}, "latency_us from 'gpu:0' to 'gpu:1' must be finite and >= 0, not -1"),
        ({"latency_us": [[0, 1]]}, "latency_us must be a 2 x 2 matrix"),
        ({"transfers": "multicast"}, "transfers must be one of unicast, broadcast, not 'multicast'"),
        ({"link": "bus"}, "link must be one of egress, pair, not 'bus'"),
        ({"link_gap_us": -1}, "link_gap_us must be finite and >= 0"),
        ({"link_gap_us": "1"}, "link_gap_us must be a number, not '1'"),
    ],
)
def test_bad_files_are_refused_in_one_sentence(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    with pytest.raises(ClusterError, match=message) as refusal:
        _load(tmp_path, DOCUMENT | change)
    assert str(refusal.value).startswith(f"{tmp_path / 'mine.json'}: ")
    assert "\n" not in str(refusal.value)


def test_missing_bandwidth_and_broken_json(tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match=r"mine\.json: bandwidth is missing"):
        _load(tmp_path, {key: DOCUMENT[key] for key in ("format", "devices")})
    (tmp_path / "broken.json").write_text("{")
    with pytest.raises(ClusterError, match=r"broken\.json: not valid JSON"):
        load_cluster(tmp_path / "broken.json")


def test_unknown_names_and_missing_files() -> None:
    with pytest.raises(ClusterError, match="unknown cluster '3xk80': presets are 2xk80, 4xk80"):
        load_cluster("3xk80")
    with pytest.raises(FileNotFoundError):
        load_cluster("nowhere.json")
