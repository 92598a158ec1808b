import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from placeto.errors import ClusterError
from placeto.problem.cluster import Cluster, Device, Link, SharedLink, Topology, load_cluster, save_cluster
from tests.toys import linked

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


def second(fields: dict[str, Any]) -> dict[str, Any]:
    """What makes the second of two devices, b, another one."""
    return {"devices": [DEVICE, {**DEVICE, "name": "b"} | fields]}


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
    assert linked(devices).device_rank.tolist() == [2, 1, 0]  # '/gpu:0' < '/gpu:10' < '/gpu:2'


def test_a_record_may_stand_for_many_devices(tmp_path: Path) -> None:
    records = [{**DEVICE, "name": "big", "count": 2}, {**DEVICE, "name": "cpu", "kind": "cpu"}, {**DEVICE, "count": 1}]
    cluster = _load(tmp_path, {"format": "placeto.cluster/1", "devices": records, "bandwidth": 1e9})
    assert cluster.device_names == ("big:0", "big:1", "cpu", "gpu:0:0")
    assert {device.kind for device in cluster.devices[:2]} == {"p100"}


def test_a_topology_stands_in_place_of_the_matrices(tmp_path: Path) -> None:
    document = {
        "format": "placeto.cluster/1",
        "devices": [{**DEVICE, "name": "gpu", "count": 4}],
        "topology": {
            "hosts": [[2], [1, 1]],
            "island": {"bandwidth": 48e9, "latency_us": 10},
            "host": {"bandwidth": 12e9},
            "network": {"bandwidth": 3e9, "latency_us": 50},
        },
    }
    cluster = _load(tmp_path, document)
    inf, net = np.inf, 3000.0
    expected = [[inf, 48000, net, net], [48000, inf, net, net], [net, net, inf, 12000], [net, net, 12000, inf]]
    np.testing.assert_array_equal(cluster.bandwidth, expected)
    np.testing.assert_array_equal(
        cluster.latency_us, [[0, 10, 50, 50], [10, 0, 50, 50], [50, 50, 0, 0], [50, 50, 0, 0]]
    )
    links = {"island": Link(48e9, 10.0), "host": Link(12e9), "network": Link(3e9, 50.0)}
    made = Cluster.from_topology("mine", cluster.devices, Topology(((2,), (1, 1)), **links))
    assert made.hash == cluster.hash


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "placeto.graph/1"}, '"format" must be "placeto.cluster/1"'),
        ({"devices": [DEVICE, DEVICE]}, "duplicate name 'gpu:0'"),
        (
            second({"flops": {"float32": 1e12, "fp16": 2e12}}),
            r"devices\['b'\]\.flops\.fp16 must be 'float64', .* or 'int8', not 'fp16'",
        ),
        (second({"flops": {"float16": 2e12}}), r"devices\['b'\]\.flops must give the peak of float32"),
        (
            {"bandwidth": [[0, 1], [1, 0], [1, 1]]},
            "bandwidth must be a 2 x 2 matrix, one row per device, or one number",
        ),
        ({"bandwidth": [[0, 1, 1], [1, 0, 1]]}, "bandwidth must be a 2 x 2 matrix"),
        ({"bandwidth": [[0, 1], [0, 0]]}, "bandwidth from 'gpu:1' to 'gpu:0' must be finite and > 0, not 0"),
        ({"latency_us": [[0, -1], [1, 0]]}, "latency_us from 'gpu:0' to 'gpu:1' must be finite and >= 0, not -1"),
        ({"latency_us": float("nan")}, "latency_us from 'gpu:0' to 'gpu:1' must be finite"),
        ({"bandwidth": [[0, True], [1, 0]]}, r"bandwidth\[0\]\[1\] must be a number, not True"),
        ({"bandwidth": 10**400}, "bandwidth must be a number or a list, not 10000"),
        ({"devices": [{**DEVICE, "count": 10**9}]}, r"devices\['gpu:0'\]\.count must be <= 4096, not 1000000000"),
    ],
)
def test_bad_files_are_refused_in_one_sentence(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    with pytest.raises(ClusterError, match=message) as refusal:
        _load(tmp_path, DOCUMENT | change)
    assert str(refusal.value).startswith(f"{tmp_path / 'mine.json'}: ")
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"devices": [{**DEVICE, "flops": {"float32": 15.7e12, "float16": 125}}]},
            r"'gpu:0': flops = 125 FLOP/s is implausible.* as in 15\.7e12",
        ),
        ({"devices": [{**DEVICE, "flops": 15.7}]}, r"'gpu:0': flops = 15\.7 FLOP/s is implausible"),
        ({"devices": [{**DEVICE, "memory_bandwidth": 900}]}, "memory_bandwidth = 900 bytes/s is implausible.*900e9"),
        ({"devices": [{**DEVICE, "memory": 16}]}, "device 'gpu:0': memory = 16 bytes is implausible.* as in 16e9"),
        (
            {"bandwidth": None, "topology": {"hosts": [[2]], "island": {"bandwidth": 48}}},
            "bandwidth = 48 bytes/s is implausible",
        ),
        ({"bandwidth": [[0, 32e9], [32, 0]]}, r"mine\.json: bandwidth = 32 bytes/s is implausible"),
        ({"bandwidth": None}, r"mine\.json: bandwidth is missing \(or topology in its place\)"),
    ],
)
def test_missing_exponents_are_implausible_and_missing_links_are_told(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    document = {"format": "placeto.cluster/1", "devices": DOCUMENT["devices"], "bandwidth": 12e9} | change
    with pytest.raises(ClusterError, match=message):
        _load(tmp_path, {key: value for key, value in document.items() if value is not None})


def test_devices_in_all_are_bounded(tmp_path: Path) -> None:
    records = [{**DEVICE, "name": f"r{i}", "count": 4096} for i in range(1000)]
    with pytest.raises(
        ClusterError, match=r"devices\['r1'\] makes more than 4096 devices in all, the most that a cluster has"
    ):
        _load(tmp_path, {"format": "placeto.cluster/1", "devices": records, "bandwidth": 1e9})
    device = Device("d", "x", 1.0, 1.0, 1)
    with pytest.raises(ClusterError, match="a cluster needs from one device to 4096, not 4097"):
        Cluster("c", (device,) * 4097, np.ones((1, 1)), np.ones((1, 1)))
    with pytest.raises(ClusterError, match="hosts must have room for at most 4096 devices"):
        Topology(((4097,),), island=Link(1.0))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"devices": ("gpu:0", "gpu:1")}, r"devices must all be of the class Device, not \('gpu:0', 'gpu:1'\)"),
        ({"bandwidth": np.ones((3, 3))}, r"bandwidth must be a 2 x 2 matrix, one row per device, not \(3, 3\)"),
        ({"bandwidth": [[1.0], [1.0, 2.0]]}, "bandwidth must be a matrix of numbers"),
        ({"latency_us": np.full((2, 2), np.nan)}, "latency_us from 'gpu:0' to 'gpu:1' must be finite"),
    ],
)
def test_fields_that_break_a_rule_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ClusterError, match=message) as refusal:
        replace(load_cluster("2xv100"), **change)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    "change",
    [{"shared_links": (SharedLink("card", 1.0, ("a\n\x1b[31m",), ("b",)),)}, {"hosts": (0, 5)}, {"link": "no\nlink"}],
)
def test_messages_are_one_line_whatever_names_hold(change: dict[str, Any]) -> None:
    cluster = load_cluster("2xv100")
    devices = tuple(replace(device, name=f"\u202e\r\n{device.name}\x1b[31m\t") for device in cluster.devices)
    with pytest.raises(ClusterError) as refused:
        replace(cluster, devices=devices, **change)
    assert str(refused.value).isprintable()


def test_numbers_of_numpy_are_plain_in_hash_and_file(tmp_path: Path) -> None:
    cluster = load_cluster("2xk80")
    devices = tuple(replace(d, flops=np.float64(d.flops), memory=np.int64(d.memory)) for d in cluster.devices)
    other = replace(cluster, devices=devices, link_gap_us=np.float32(cluster.link_gap_us))
    assert other.hash == cluster.hash
    assert replace(cluster, devices=tuple(replace(d, flops=np.int64(1)) for d in devices)).hash
    save_cluster(other, tmp_path / "mine.json")
    assert load_cluster(tmp_path / "mine.json").hash == cluster.hash


def test_topology_makes_shared_links_and_files_keep_them(tmp_path: Path) -> None:
    """Two hosts of two islands: a card each, a switch for each island, a bridge between those of a host."""
    level, shared = Link(10e9, 1.0), Link(4e9, 2.0)
    topology = Topology(((2, 1), (1,)), level, level, level, switch=shared, bridge=shared, card=shared)
    devices = [Device(f"d{n}", "x", 1e12, 1e12, 10**9) for n in range(4)]
    cluster = Cluster.from_topology("mine", devices, topology)
    crossed = {link.name: (link.senders, link.receivers) for link in cluster.shared_links}
    assert crossed["card 0 of host 0, out"] == (("d0", "d1", "d2"), ("d3",))
    assert crossed["switch of island 0, in"] == (("d2", "d3"), ("d0", "d1"))
    assert crossed["bridge from island 1"] == (("d2",), ("d0", "d1"))
    assert len(crossed) == 4 + 6 + 2
    # d0 to d3: both cards, both switches; d0 to d2: two switches and the bridge; d0 to d1: nothing
    assert cluster.latency_us[0].tolist() == [0.0, 1.0, 1.0 + 3 * 2.0, 1.0 + 4 * 2.0]
    assert (cluster.bandwidth[0, 1:] * 1e6).tolist() == [10e9, 4e9, 4e9]
    ptr, links = cluster.paths
    names = [cluster.shared_links[link].name for link in links[ptr[3] : ptr[4]]]
    assert names == [
        "card 0 of host 0, out",
        "card 0 of host 1, in",
        "switch of island 0, out",
        "switch of island 2, in",
    ]
    save_cluster(cluster, tmp_path / "mine.json")
    again = load_cluster(tmp_path / "mine.json")
    assert again.hash == cluster.hash
    assert again.shared_links == cluster.shared_links


def test_shared_links_of_a_file(tmp_path: Path) -> None:
    device = {"name": "gpu", "count": 2, "flops": 1e12, "memory_bandwidth": 1e12, "memory": 10**9}
    card = {"name": "card", "bandwidth": 1e9, "latency_us": 3.0, "from": ["gpu:0"], "to": ["gpu:1"]}
    document = {"format": "placeto.cluster/1", "devices": [device], "bandwidth": 12e9, "shared_links": [card]}
    path = tmp_path / "c.json"
    path.write_text(json.dumps(document))
    cluster = load_cluster(path)
    assert cluster.latency_us.tolist() == [[0.0, 3.0], [0.0, 0.0]]
    assert cluster.bandwidth[0, 1] == 1e3
    for change, message in (
        ({"bandwidth": 25}, r"shared link 'card': bandwidth = 25 bytes/s is implausible"),
        ({"to": ["gpu:7"]}, r"shared_links\['card'\]: there is no device 'gpu:7', but gpu:0, gpu:1"),
        ({"too": []}, r"shared_links\['card'\]\.too is unknown"),
    ):
        path.write_text(json.dumps(document | {"shared_links": [card | change]}))
        with pytest.raises(ClusterError, match=message):
            load_cluster(path)


def test_a_peak_by_dtype(tmp_path: Path) -> None:
    flops = {"float16": 125e12, "float32": 15.7e12}
    cluster = _load(tmp_path, {**DOCUMENT, "devices": [{**DEVICE, "flops": flops}, {**DEVICE, "name": "gpu:1"}]})
    several, one = cluster.devices
    dtypes = ("float32", "float16", "bfloat16", "tf32", "float64")
    assert [several.peak(dtype) for dtype in dtypes] == [15.7e12, 125e12, 125e12, 15.7e12, 15.7e12]
    assert {one.peak(dtype) for dtype in dtypes} == {9.5e12}, "one number holds for all dtypes, as it always did"
    assert len({several, one, replace(several, overhead_us=1.0)}) == 3
