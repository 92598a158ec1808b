"""Cost models and precisions on the command line."""

import json
from pathlib import Path

import pytest

from placeto.formats.placement import load_placement
from placeto.problem.costs import EFFICIENCY, load_costs
from placeto.problem.graph import ComputationGraph, save_graph
from tests.command_line import run

TABLE = {"format": "placeto.efficiency/1", "constant": 0.5, "entries": []}


@pytest.fixture
def graph(tmp_path: Path) -> Path:
    """A product of 1 ms at the full speed of a V100."""
    op = {"name": "a", "type": "aten.mm", "flops": 15.7e9, "bytes_accessed": 1e6, "outputs": [4]}
    save_graph(ComputationGraph.from_ops("one", [op]), tmp_path / "one.json")
    return tmp_path / "one.json"


def makespan(output: str) -> float:
    """Of what place or simulate print."""
    return float(output.split("makespan")[1].split("(")[1].split()[0])


def test_place_and_simulate_by_other_costs(graph: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.json").write_text(json.dumps(TABLE))
    on = (graph, "--cluster", "2xv100")
    found = {}
    for costs in ("roofline", "efficiency", tmp_path / "mine.json"):
        placement = tmp_path / "placement.json"
        assert run("place", *on, "--placer", "single", "--costs", costs, "-o", placement) == 0
        found[str(costs)] = makespan(capsys.readouterr().out)
        assert run("simulate", *on, "--placement", placement, "--costs", costs) == 0
        captured = capsys.readouterr()
        assert makespan(captured.out) == found[str(costs)]
        assert captured.err == "", "what simulate finds is what the file says"
    assert load_placement(placement).costs == load_costs(tmp_path / "mine.json").name
    assert run("simulate", *on, "--placement", placement, "--costs", "roofline") == 0
    (note,) = capsys.readouterr().err.splitlines()
    assert f"by costs {load_placement(placement).costs}, not " in note
    assert note.endswith(" us by roofline")
    assert found.pop(str(tmp_path / "mine.json")) == pytest.approx(2005.0)
    assert found["roofline"] == pytest.approx(1005.0)
    assert 1050.0 < found["efficiency"] < 1600.0
    assert run("place", *on, "--placer", "single") == 0
    assert makespan(capsys.readouterr().out) == found["efficiency"], "the default"


def test_evaluation_keeps_rows_of_the_same_costs_only(
    graph: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "table.json"
    rows = []
    for costs in ("roofline", "efficiency", "efficiency"):
        arguments = ("--cluster", "2xv100", "--placers", "single", "--costs", costs, "--processes", "1", "-o", out)
        assert run("evaluate", graph, *arguments) == 0
        (row,) = json.loads(out.read_text())["rows"]
        rows.append(row)
    assert [row["costs"] for row in rows] == ["roofline", EFFICIENCY.name, EFFICIENCY.name]
    assert rows[0]["key"] != rows[1]["key"]
    assert rows[1] == rows[2], "taken from the file, its seconds included"
    assert rows[0]["makespan_us"] < rows[1]["makespan_us"]
