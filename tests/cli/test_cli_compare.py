"""`placeto compare`."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from placeto.problem.cluster import load_cluster, save_cluster
from placeto.problem.graph import ComputationGraph, save_graph
from tests.command_line import fails, run


def test_clusters_by_name_and_from_a_file(graph_file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mine, table, plot = tmp_path / "mine.json", tmp_path / "table.json", tmp_path / "compare.png"
    save_cluster(replace(load_cluster("2xp100"), name="mine", price_per_hour=2.5), mine)
    common = ("--simulations", "30", "-o", table, "--plot", plot)
    assert run("compare", graph_file, "--clusters", f"2xv100,8xh100,{mine}", *common) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "4 ops, training" in lines[0]
    assert [line.split()[0] for line in lines[1:5]] == ["cluster", "2xv100", "8xh100", "mine"]
    assert [line.split(":")[0] for line in lines[5:8]] == ["2xv100", "8xh100", "mine"]
    assert all("samples a second" in line for line in lines[5:8])
    assert lines[8].startswith("A step is fastest on ")
    rows = json.loads(table.read_text())["rows"]
    assert [row["price_per_step"] is None for row in rows] == [True, True, False]
    assert plot.stat().st_size > 1000


def rows_of(*arguments: str) -> list[dict[str, Any]]:
    """What `placeto compare` writes."""
    assert run("compare", *arguments, "--clusters", "2xv100,4xv100", "--simulations", "30", "-o", "rows.json") == 0
    rows: list[dict[str, Any]] = json.loads(Path("rows.json").read_text())["rows"]
    return rows


@pytest.mark.usefixtures("net_file")
def test_a_model_is_compared_as_it_is_planned(capsys: pytest.CaptureFixture[str]) -> None:
    rows = rows_of("net.py:net", "--loss", "mean")
    on = "--cluster", "4xv100", "--simulations", "30", "-o", "p.json"
    assert run("plan", "net.py:net", "--loss", "mean", *on) == 0
    planned = json.loads(Path("p.json").read_text())
    both = "kind", "shape", "micro_batches", "step_us", "run_by", "fits"
    assert [rows[1][field] for field in both] == [planned[field] for field in both]
    assert rows[1]["samples_per_second"] == pytest.approx(planned["batch"] * 1e6 / planned["step_us"])
    assert "samples/s" in capsys.readouterr().out


@pytest.mark.usefixtures("net_file")
def test_a_step_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    """An inference, a step with the optimizer's update, and a graph file have the micro-batches that they have."""
    assert {row["micro_batches"] for row in rows_of("net.py:net", "--inference")} == {1}
    said = capsys.readouterr().out
    assert "inference" in said
    assert "A replica on each device gives" in said
    assert "samples/s" not in said
    split = "--loss", "mean", "--micro-batches", "4"
    assert {row["micro_batches"] for row in rows_of("net.py:net", "--optimizer-step", *split)} == {4}
    assert run("capture", "net.py:net", *split, "-o", "net.json") == 0
    capsys.readouterr()
    assert {row["micro_batches"] for row in rows_of("net.json")} == {4}
    assert "gives" not in capsys.readouterr().out, "a replica on each device is one of the ways"
    sharded = rows_of("net.py:net", "--inference", "--micro-batches", "4")
    assert not any("optimizer" in row["kind"] or "gradients" in row["kind"] for row in sharded)


@pytest.mark.usefixtures("net_file")
def test_what_takes_no_time() -> None:
    ops = [
        {"name": "a", "time_us": {"*": 0.0}, "outputs": [8]},
        {"name": "b", "time_us": {"*": 0.0}, "inputs": [["a", 0]]},
    ]
    save_graph(ComputationGraph.from_ops("nothing", ops), "nothing.json")
    assert [row["step_us"] for row in rows_of("nothing.json")] == [0.0, 0.0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("net.py:net --dim batch=4", "--dim is for ONNX files"),
        ("net.py:net --batch 4", "--batch is for a config.json"),
        ("net.py:net --inference --batch 4", "--batch is for a training step of a config.json"),
        ("g.json --micro-batches 4", "--micro-batches is for modules, given as file.py:function; g.json is a graph"),
        ("nothing.json", "nothing.json"),
        ("empty.py:make", "empty.py:make: the batch, a tensor of shape (0, 8), has no samples: give one as in a run"),
        ("config.json --inference", "--inference is for a FACTORY; of a config.json, the training step is compared"),
        ("net.py:net --headroom 100GB", "leaves no memory"),
    ],
)
@pytest.mark.usefixtures("net_file")
def test_what_is_refused(arguments: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    save_graph(ComputationGraph.from_ops("g", [{"name": "a"}]), "g.json")
    Path("config.json").write_text('{"model_type": "llama"}')
    Path("empty.py").write_text(
        "import torch\ndef make(): return torch.nn.Linear(8, 8), [torch.empty(0, 8)], torch.sum\n"
    )
    assert message in fails(capsys, "compare", *arguments.split(), "--clusters", "2xv100")
