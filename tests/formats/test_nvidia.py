"""Clusters from what nvidia-smi prints. The machines are made up after public descriptions of their kind."""

from pathlib import Path

import numpy as np
import pytest

from placeto.errors import ClusterError
from placeto.formats.nvidia import load_machine
from placeto.problem.cluster import Cluster, load_cluster
from placeto.problem.cluster.presets import PCIE4

LEGEND = """
Legend:

  X    = Self
  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes (e.g., QPI/UPI)
  NV#  = Connection traversing a bonded set of # NVLinks
"""
DGX1 = """\
NV1 NV1 NV2 NV2 SYS SYS SYS|NV1 NV2 NV1 SYS NV2 SYS SYS|NV1 NV2 NV2 SYS SYS NV1 SYS|NV2 NV1 NV2 SYS SYS SYS NV1|
NV2 SYS SYS SYS NV1 NV1 NV2|SYS NV2 SYS SYS NV1 NV2 NV1|SYS SYS NV1 SYS NV1 NV2 NV2|SYS SYS SYS NV1 NV2 NV1 NV2
"""
FOUR_CARDS = "PIX SYS SYS|PIX SYS SYS|SYS SYS PIX|SYS SYS PIX"


def machine(off_diagonal: str, board: str = "", header: str = "", end: str = "\t0-19,40-59\t0\t\tN/A") -> str:
    """What nvidia-smi prints: -L for the board if there is one, then topo -m with the given cells beside the X."""
    rows = [row.split() for row in off_diagonal.replace("\n", "").split("|")]
    count = len(rows)
    lines = [f"GPU {i}: {board} (UUID: GPU-00000000-0000-0000-0000-00000000000{i:x})" for i in range(count) if board]
    columns = "\t".join(f"GPU{i}" for i in range(count))
    lines.append(f"\t\x1b[4m{columns}{header}\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m")
    for i, row in enumerate(rows):
        cells = [*row[:i], " X ", *row[i:]]
        lines.append("\t".join([f"GPU{i}", *cells]) + end)
    return "\n".join(lines) + "\n" + LEGEND


def loaded(folder: Path, text: str, *kinds: str) -> Cluster:
    (folder / "machine.txt").write_text(text)
    return load_machine(folder / "machine.txt", kinds)


def all_to_all(count: int, cell: str) -> str:
    return "|".join([" ".join([cell] * (count - 1))] * count)


@pytest.mark.parametrize(
    ("text", "preset"),
    [
        (machine(DGX1, "Tesla V100-SXM2-16GB"), "8xv100"),
        (machine(all_to_all(8, "NV12"), "NVIDIA A100-SXM4-40GB"), "8xa100-40gb"),
        (machine(all_to_all(8, "NV18"), "NVIDIA H100 80GB HBM3"), "8xh100"),
        (machine(all_to_all(8, "NV18"), "NVIDIA B200"), "8xb200"),
        (machine(all_to_all(4, "NV4"), "NVIDIA A100-SXM4-80GB"), "4xa100"),
        (machine(all_to_all(4, "NODE"), "NVIDIA L4"), "4xl4"),
        (machine(all_to_all(2, "PHB"), "NVIDIA GeForce RTX 3090"), "2xrtx3090"),
    ],
    ids=lambda value: value if len(value) < 20 else "",
)
def test_machines_that_are_presets_have_their_numbers(text: str, preset: str, tmp_path: Path) -> None:
    cluster, expected = loaded(tmp_path, text), load_cluster(preset)
    assert cluster.name == "machine"
    assert cluster.devices == expected.devices
    np.testing.assert_allclose(cluster.bandwidth, expected.bandwidth, rtol=1e-12)
    np.testing.assert_array_equal(cluster.latency_us, expected.latency_us)
    assert (cluster.link, cluster.transfers, cluster.shared_links) == (expected.link, expected.transfers, ())


def test_network_cards_and_old_drivers_are_read_over(tmp_path: Path) -> None:
    """Columns and rows of network cards; spaces for tabs; SOC for SYS; other output before and after."""
    cards = machine(all_to_all(2, "SOC"), "Tesla T4", header="\tNIC0\tmlx5_1", end="\tPIX\tSYS\t0-7\t0\tN/A")
    cards = cards.replace("\nLegend", "NIC0\tPIX\tSYS\t X \tSYS\nLegend").expandtabs()
    cluster = loaded(tmp_path, f"$ nvidia-smi -L\n{cards}\n$")
    assert cluster.num_devices == 2
    assert cluster.bandwidth[0, 1] == 9e3  # three quarters of PCIe 3.0, bytes/us
    assert cluster.latency_us[0, 1] == 20.0


def test_four_cards_over_two_sockets(tmp_path: Path) -> None:
    """Two PCIe switches, one a socket: full speed below one, three quarters between, and the way out is shared."""
    cluster = loaded(tmp_path, machine(FOUR_CARDS, "NVIDIA A10"))
    assert cluster.device_names == ("gpu:0", "gpu:1", "gpu:2", "gpu:3")
    assert (cluster.bandwidth[0, 1], cluster.latency_us[0, 1]) == (PCIE4 / 1e6, 15.0)
    assert (cluster.bandwidth[1, 2], cluster.latency_us[1, 2]) == (0.75 * PCIE4 / 1e6, 20.0)
    assert cluster.link == "egress"
    ways = {(link.senders, link.receivers) for link in cluster.shared_links}
    first, second = ("gpu:0", "gpu:1"), ("gpu:2", "gpu:3")
    assert ways == {(first, second), (second, first)}
    assert {link.bandwidth for link in cluster.shared_links} == {PCIE4 / 1e6}


def test_kinds_in_place_of_names(tmp_path: Path) -> None:
    text = machine(all_to_all(2, "PHB"))
    assert [device.kind for device in loaded(tmp_path, text, "t4").devices] == ["t4", "t4"]
    assert [device.kind for device in loaded(tmp_path, text, "t4", "p100").devices] == ["t4", "p100"]
    assert loaded(tmp_path, machine(all_to_all(2, "NV1"), "Tesla V100-SXM2-32GB")).memory.tolist() == [32 * 10**9] * 2


@pytest.mark.parametrize(
    ("text", "kinds", "says"),
    [
        ("", (), r"machine\.txt: has no matrix of connections, .*: write one by \(nvidia-smi -L; nvidia-smi topo -m\)"),
        (machine("PHB|PHB"), (), r"doesn't say what GPUs these are: .* or give their kind \(--kind\), one of k80, "),
        (machine("PHB|PHB", "NVIDIA L40S"), (), "no numbers for GPU 0, 'NVIDIA L40S': give the kind that is nearest"),
        (machine("PHB|PHB"), ("l40s",), "no numbers for GPUs of kind 'l40s', but for k80, p100, p40"),
        (machine("PHB|PHB"), ("t4",) * 3, "one kind is needed, or one for each of 2 GPUs, not 3"),
        (machine("PHB|NODE"), ("t4",), "GPU0 to GPU1 is PHB, but GPU1 to GPU0 NODE"),
        (machine("ABC|ABC"), ("t4",), "GPU0 to GPU1 must be NV and a number, or one of PIX, PXB, .*, not 'ABC'"),
        (machine("NV0|NV0"), ("v100",), "must be NV and a number"),
        (machine("NV2|NV2"), ("t4",), "GPU0 to GPU1 is NV2, but a GPU of kind t4 has no NVLink"),
        (machine("PHB|").replace("GPU1\t X", "GPU7\t X"), ("t4",), "the row of GPU1 must have 2 connections, it has 0"),
        ("GPU 0: Tesla T4 (UUID: x)\n" + machine("PHB|PHB"), (), "names 1 GPUs, but connects 2"),
        (
            machine("PHB|PHB", "Tesla T4") + machine("PHB|PHB", "NVIDIA L4"),
            (),
            "GPU 0 is 'Tesla T4' and 'NVIDIA L4': give",
        ),
        ("No devices were found\n", (), "nvidia-smi failed on that machine, it says 'No devices were found'"),
        (
            "Failed to initialize NVML: x\n",
            (),
            "nvidia-smi failed on that machine, it says 'Failed to initialize NVML: x'",
        ),
    ],
)
def test_what_is_no_machine(text: str, kinds: tuple[str, ...], says: str, tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match=says):
        loaded(tmp_path, text, *kinds)


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_files_as_powershell_writes_them(encoding: str, tmp_path: Path) -> None:
    text = "GPU 0: NVIDIA L4 (UUID: GPU-00)\r\n\tGPU0\r\nGPU0\t X \r\n"  # a matrix without affinities
    (tmp_path / "machine.txt").write_bytes(text.encode(encoding))
    assert [device.kind for device in load_machine(tmp_path / "machine.txt").devices] == ["l4"]


def test_mig_instances_are_no_whole_gpus(tmp_path: Path) -> None:
    text = machine(all_to_all(2, "NV12"), "NVIDIA A100-SXM4-40GB")
    first, _, rest = text.partition("\n")
    text = f"{first}\n  MIG 1g.5gb     Device  0: (UUID: MIG-0)\n{rest}"
    with pytest.raises(ClusterError, match=r"GPU 0 is divided into MIG instances, .* \(--kind\)"):
        loaded(tmp_path, text)
    assert loaded(tmp_path, text, "a100-40gb").num_devices == 2  # to be corrected by hand
