"""`placeto place` and `placeto simulate`."""

import io
import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from placeto.problem.cluster import Device, load_cluster, save_cluster
from placeto.problem.graph import ComputationGraph, save_graph
from placeto.problem.problem import PlacementProblem
from placeto.problem.units import format_us
from placeto.simulator.schedule import simulate
from tests.command_line import OPS, fails, run
from tests.toys import linked


def test_place_then_simulate_agree_exactly(graph_file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    placement, trace = tmp_path / "p.json", tmp_path / "t.json"
    common = ("--cluster", "4xv100")
    pictures = [tmp_path / "gantt.png", tmp_path / "gantt.svg"]
    assert run("place", graph_file, *common, "--placer", "etf", "-o", placement, "--plot", pictures[0]) == 0
    printed = capsys.readouterr().out
    more = ("--trace", trace, "--plot", pictures[1])
    assert run("simulate", graph_file, *common, "--placement", placement, *more) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    document = json.loads(placement.read_text())
    line = f"makespan     {format_us(document['makespan_us'])} ({document['makespan_us']:.3f} us)\n"
    assert line in printed
    assert line in captured.out
    problem = PlacementProblem(ComputationGraph.from_ops("fork", OPS), load_cluster("4xv100"))
    index = {name: i for i, name in enumerate(problem.cluster.device_names)}
    devices = np.array([index[document["placement"][op["name"]]] for op in OPS])
    schedule = simulate(problem, devices)
    assert document["makespan_us"] == schedule.makespan_us
    assert list(document["peak_memory"].values()) == schedule.peak_memory.tolist()
    assert (document["placer"], document["cluster"], document["fits"]) == ("etf", "4xv100", True)
    assert document["graph_hash"] == problem.graph.hash
    assert {event["name"] for event in json.loads(trace.read_text())["traceEvents"] if event["ph"] == "X"} == set(
        "abcd"
    )
    assert all(picture.stat().st_size > 1000 for picture in pictures)


@pytest.mark.parametrize(
    ("budget", "spent"), [((), "1000"), (("--simulations", "2e2"), "200"), (("--simulations", "0"), "0")]
)
def test_the_policy_searches_by_default_and_answers_without_a_budget(
    budget: tuple[str, ...], spent: str, graph_file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("place", graph_file, "--cluster", "2xv100", *budget) == 0
    out = capsys.readouterr().out
    assert f"placer       placeto: {spent} simulations" in out
    makespan = float(out.split("(")[1].split()[0])
    assert spent == "0" or makespan < 1300.0  # both branches at once; 1812 + overheads on one device


def test_a_terminal_shows_what_is_at_work(
    graph_file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stderr", screen := Terminal())
    monkeypatch.setenv("COLUMNS", "200")
    curve = tmp_path / "curve.svg"
    more = ("--placer", "anneal", "--simulations", "3000", "--workers", "1", "--curve", curve, "--patience", "0.5")
    assert run("place", graph_file, "--cluster", "2xv100", *more) == 0
    assert "search: 1.13 ms, 0.615 of one device, 0.0 % below the best heuristic" in screen.getvalue()
    assert "anneal: 2" in capsys.readouterr().out  # it had enough before 3,000
    assert curve.read_text().endswith("</svg>\n")


def test_devices_without_measured_ops_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    op = {"name": "a", "type": "aten.mm", "flops": 2e9}
    save_graph(ComputationGraph.from_ops("one", [op]), graph_file := tmp_path / "one.json")
    for cluster, told in (("2xv100", ""), ("4xa10", "a10"), ("cpu-laptop+1xrtx3090", "cpu-laptop, rtx3090")):
        assert run("place", graph_file, "--cluster", cluster, "--placer", "fastest") == 0
        note = f"note: no ops were measured on {told}: their times are estimates; give your own with --costs\n"
        assert capsys.readouterr().err == (note if told else "")


def test_an_unfit_placement_is_told_with_what_is_missing_where(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """9 GB a device of ops, with gradients and moments 36 GB, on 16 GB; the ratio to one device would be none."""
    ops = [op | {"param_bytes": 9 * 10**9 if op["name"] == "a" else 0} for op in OPS]
    save_graph(ComputationGraph.from_ops("big", ops), tmp_path / "big.json")
    placement = {"format": "placeto.placement/1", "placement": dict.fromkeys("abcd", "gpu:1")}
    (tmp_path / "p.json").write_text(json.dumps(placement))
    common = ("--cluster", "2xv100", "--placement", tmp_path / "p.json")
    assert run("simulate", tmp_path / "big.json", *common) == 0
    captured = capsys.readouterr()
    assert captured.err.endswith("doesn't fit in the memory of 2xv100: 20.0 GB on gpu:1 too much\n")
    assert captured.err.count("\n") == 1
    line = next(line for line in captured.out.splitlines() if line.startswith("gpu:1"))
    assert line.split("  ")[-2:] == ["36.0 GB of 16.0 GB", 30 * "#"]


def test_the_ratio_is_to_the_fastest_device_that_holds_the_graph(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = Device("small", "fast", 2e12, 1e12, 10**6, 0.0)
    large = Device("large", "slow", 1e12, 1e12, 10**8, 0.0)
    save_cluster(linked([small, large]), tmp_path / "two.json")
    op = {"name": "a", "flops": 2e6, "param_bytes": 10**6, "outputs": [4]}
    save_graph(ComputationGraph.from_ops("one", [op]), tmp_path / "one.json")
    assert run("place", tmp_path / "one.json", "--cluster", tmp_path / "two.json", "--placer", "single") == 0
    assert "1.0000 of the best single device that holds the graph (large), " in capsys.readouterr().out


def test_names_do_not_reach_the_terminal_as_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    red = "\x1b[31mred"
    cluster = replace(load_cluster("2xv100"), name=red)
    cluster = replace(cluster, devices=tuple(replace(d, name=f"{d.name}{red}") for d in cluster.devices))
    save_cluster(cluster, tmp_path / "red.json")
    save_graph(ComputationGraph.from_ops(red, OPS), tmp_path / f"{red}.json")
    assert run("place", tmp_path / f"{red}.json", "--cluster", tmp_path / "red.json", "--placer", "etf") == 0
    captured = capsys.readouterr()
    assert "gpu:0\\x1b[31mred" in captured.out
    assert "\x1b" not in captured.out + captured.err
    assert "\x1b" not in fails(capsys, "place", tmp_path / f"{red}.json", "--cluster", red, "--placer", "etf")


@pytest.mark.parametrize("budget", [("--simulations", "50"), ("--seconds", "0.2")])
def test_place_what_takes_no_time(budget: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    idle = ComputationGraph.from_ops("idle", [{"name": "a", "outputs": [4]}, {"name": "b", "inputs": [["a", 0]]}])
    save_graph(idle, tmp_path / "idle.json")
    picture = ("--plot", tmp_path / "idle.png")
    assert run("place", tmp_path / "idle.json", "--cluster", "2xv100", *budget, *picture) == 0
    out = capsys.readouterr().out
    assert "makespan     0 us (0.000 us)" in out
    assert "nan" not in out


def test_a_placement_by_hand_needs_no_more_than_devices(
    graph_file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    placement = tmp_path / "hand.json"
    names = {op["name"]: "gpu:0" for op in OPS}
    placement.write_text(json.dumps({"format": "placeto.placement/1", "placement": names}))
    assert run("simulate", graph_file, "--cluster", "2xv100", "--placement", placement) == 0
    assert "1.0000 of the best single device" in capsys.readouterr().out


def test_a_placement_whose_makespan_differs_is_noted(
    graph_file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    placement = tmp_path / "p.json"
    assert run("place", graph_file, "--cluster", "2xv100", "--placer", "etf", "-o", placement) == 0
    capsys.readouterr()
    assert run("simulate", graph_file, "--cluster", "2xk80", "--placement", placement) == 0
    assert "says" in capsys.readouterr().err


def test_place_says_that_nothing_fits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ops = [op | {"param_bytes": 9 * 10**9} for op in OPS]
    save_graph(ComputationGraph.from_ops("huge", ops), tmp_path / "huge.json")
    for placer in ("single", "heft", "anneal"):
        out = tmp_path / f"{placer}.json"
        assert run("place", tmp_path / "huge.json", "--cluster", "2xv100", "--placer", placer, "-o", out) == 0
        captured = capsys.readouterr()
        assert captured.err.startswith(f"note: {placer} found no placement of ")
        assert re.search(r"memory of 2xv100: [0-9.]+ GB on gpu:[01](, [0-9.]+ GB on gpu:1)? too much\n$", captured.err)
        assert captured.err.count("\n") == 1
        assert "\nfits         no\n" in captured.out
        assert "of the best single device" not in captured.out
        assert "\n             no single device holds the graph, " in captured.out
        assert json.loads(out.read_text())["fits"] is False
