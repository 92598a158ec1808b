"""`placeto cluster`."""

from pathlib import Path

import pytest

from placeto.problem.cluster import load_cluster
from tests.command_line import run

MACHINE = """\
GPU 0: Tesla T4 (UUID: GPU-0)
GPU 1: Tesla T4 (UUID: GPU-1)
\tGPU0\tGPU1\tCPU Affinity
GPU0\t X \tPHB\t0-3
GPU1\tPHB\t X \t0-3
"""


@pytest.mark.parametrize("preset", ["1xt4", "4xv100", "2x8xh100", "4xk80"])
def test_presets(preset: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "mine.json"
    assert run("cluster", preset, "-o", out) == 0
    assert f"cluster      {out}: " in capsys.readouterr().out
    cluster = load_cluster(out)
    assert cluster.name == "mine"
    assert cluster.hash == load_cluster(preset).hash
    assert run("cluster", out, "-o", tmp_path / "again.json") == 0
    assert load_cluster(tmp_path / "again.json").hash == cluster.hash


def test_boards_without_a_preset_are_written_and_their_links_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "mine.json"
    assert run("cluster", "3xl4", "-o", out) == 0
    assert capsys.readouterr().err == "note: 3xl4 is no preset: its links are assumed, with 24 GB/s or more\n"
    assert load_cluster(out).bandwidth[0, 2] == load_cluster("4xl4").bandwidth[0, 2]


def test_hosts_that_take_time_to_launch_ops_on_gpus(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "mine.json"
    assert run("cluster", "cpu-laptop+1xrtx3090", "-o", out, "--launch-us", 50) == 0
    assert load_cluster(out).hash != load_cluster("cpu-laptop+1xrtx3090").hash
    assert load_cluster(out).launch_us.tolist() == [0.0, 50.0]
    described = "1 CPU-LAPTOP (0.845 TFLOP/s, 16 GB) and 1 RTX3090 (35.6/71 TFLOP/s, 25.8 GB, 50 us to launch an op); "
    assert described in capsys.readouterr().out
    assert run("cluster", out, "-o", out, "--launch-us", -1) == 2
    assert "launch_us" in capsys.readouterr().err
    assert run("cluster", "2xcpu-core", "-o", out, "--launch-us", 50) == 2
    assert "--launch-us is for GPUs, and 2xcpu-core has CPUs alone" in capsys.readouterr().err


def test_machines(graph_file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    machine, out = tmp_path / "machine.txt", tmp_path / "mine.json"
    machine.write_text(MACHINE)
    assert run("cluster", machine, "-o", out) == 0
    assert "2 T4 (8.1/65 TFLOP/s, 16.1 GB each); links of 12 GB/s, one per sender" in capsys.readouterr().out
    assert load_cluster(out).hash == load_cluster("2xt4").hash
    assert run("place", graph_file, "--cluster", out, "--placer", "etf") == 0
    machine.write_text(MACHINE[MACHINE.index("\tGPU0") :])
    assert run("cluster", machine, "-o", out, "--kind", "v100,p100") == 0
    assert [device.kind for device in load_cluster(out).devices] == ["v100", "p100"]
