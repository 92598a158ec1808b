"""`placeto cluster`."""

from pathlib import Path

import pytest

from placeto.problem.cluster import load_cluster
from tests.command_line import fails, run

MACHINE = """\
GPU 0: Tesla T4 (UUID: GPU-0)
GPU 1: Tesla T4 (UUID: GPU-1)
\tGPU0\tGPU1\tCPU Affinity
GPU0\t X \tPHB\t0-3
GPU1\tPHB\t X \t0-3
"""


@pytest.mark.parametrize("preset", ["4xv100", "2x8xh100", "4xk80"])
def test_presets(preset: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "mine.json"
    assert run("cluster", preset, "-o", out) == 0
    assert f"cluster      {out}: " in capsys.readouterr().out
    cluster = load_cluster(out)
    assert cluster.name == "mine"
    assert cluster.hash == load_cluster(preset).hash
    assert run("cluster", out, "-o", tmp_path / "again.json") == 0
    assert load_cluster(tmp_path / "again.json").hash == cluster.hash


def test_machines(graph_file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    machine, out = tmp_path / "machine.txt", tmp_path / "mine.json"
    machine.write_text(MACHINE)
    assert run("cluster", machine, "-o", out) == 0
    assert "2 T4 (8.1/65 TFLOP/s, 16 GB each); links of 12 GB/s, one per sender" in capsys.readouterr().out
    assert load_cluster(out).hash == load_cluster("2xt4").hash
    assert run("place", graph_file, "--cluster", out, "--placer", "etf") == 0
    machine.write_text(MACHINE[MACHINE.index("\tGPU0") :])
    assert run("cluster", machine, "-o", out, "--kind", "v100,p100") == 0
    assert [device.kind for device in load_cluster(out).devices] == ["v100", "p100"]


def test_mistakes_are_told_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "machine.txt").write_text(MACHINE.replace("T4", "T5"))
    out = ("-o", tmp_path / "mine.json")
    for words, says in (
        (("2xv100", "-o", tmp_path / "mine.txt"), "mine.txt: must end in .json or .json.gz"),
        (("3xq100", *out), "'3xq100' is no preset and no file; presets are 2xk80"),
        ((tmp_path / "machine.txt", *out), "no numbers for GPU 0, 'Tesla T5': give the kind that is nearest (--kind)"),
        ((__file__, *out), "connections, as nvidia-smi topo -m prints it"),
        (("2xv100", "--kind", "t4", *out), "--kind is for what nvidia-smi prints; 2xv100 says what its devices are"),
        ((tmp_path / "none.json", *out), "there is no such file; presets are 2xk80"),
    ):
        assert says in fails(capsys, "cluster", *words)
    assert not (tmp_path / "mine.json").exists()
