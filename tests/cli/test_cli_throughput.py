"""``placeto place --objective throughput``."""

import json
import re
from pathlib import Path

import pytest

from placeto.placers import resolve_graph
from placeto.problem.cluster import load_cluster
from placeto.problem.problem import PlacementProblem
from tests.command_line import run

WORDS = ("--cluster", "2xv100", "--objective", "throughput")


def test_it_prints_the_greatest_load_and_writes_the_placement(
    graph_file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "p.json"
    assert run("place", graph_file, *WORDS, "--placer", "contiguous", "-o", out) == 0
    printed = capsys.readouterr().out
    greatest = float(re.findall(r"greatest load .* \((\S+) us\)", printed)[0])
    assert "optimal      yes: no contiguous split has less" in printed
    assert f"{1e6 / greatest:.4g} " in printed
    document, cluster = json.loads(out.read_text()), load_cluster("2xv100")
    problem = PlacementProblem(resolve_graph(graph_file)[1], cluster)
    assert document["placer"] == "contiguous"
    on = [cluster.device_names.index(document["placement"][name]) for name in problem.graph.op_names]
    loads = [sum(problem.busy_us[op, d] for op, at in enumerate(on) if at == d) for d in range(2)]
    assert max(loads) <= greatest <= problem.busy_us.sum(axis=0).min() + 1e-3
    assert run("place", graph_file, *WORDS, "--seconds", "2") == 0
    free = float(re.findall(r"greatest load .* \((\S+) us\)", capsys.readouterr().out)[0])
    assert free <= greatest


def test_the_page_says_what_the_command_prints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (Path(__file__).parents[2] / "docs" / "throughput.md").read_text()
    program, command, printed, *_ = re.findall(r"^```\w*\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    (tmp_path / "answers.py").write_text(program)
    monkeypatch.chdir(tmp_path)
    assert run(*command.split()[1:]) == 0
    timeless = [re.sub(r"in \d+\.\d\d s", "", text) for text in (capsys.readouterr().out, printed)]
    assert timeless[0] == timeless[1]
