"""`placeto compare`."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from placeto.problem.cluster import load_cluster, save_cluster
from tests.command_line import run


def test_clusters_by_name_and_from_a_file(graph_file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mine, table, plot = tmp_path / "mine.json", tmp_path / "table.json", tmp_path / "compare.png"
    save_cluster(replace(load_cluster("2xp100"), name="mine", price_per_hour=2.5), mine)
    common = ("--placer", "etf", "-o", table, "--plot", plot)
    assert run("compare", graph_file, "--clusters", f"2xv100,8xh100,{mine}", *common) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith("fork.json: 4 ops, training") or "4 ops, training" in lines[0]
    assert [line.split()[0] for line in lines[1:5]] == ["cluster", "2xv100", "8xh100", "mine"]
    assert [line.split(":")[0] for line in lines[5:]] == ["2xv100", "8xh100", "mine"]
    assert all("samples a second" in line for line in lines[5:])
    rows = json.loads(table.read_text())["rows"]
    assert [row["price_per_step"] is None for row in rows] == [True, True, False]
    assert plot.stat().st_size > 1000
