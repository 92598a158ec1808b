"""`placeto evaluate`."""

import json
from pathlib import Path

import pytest

from placeto.problem.graph import ComputationGraph, save_graph
from tests.command_line import OPS, SHARED, fails, run


def test_evaluate_prints_and_writes_a_table(
    graph_file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, curve = tmp_path / "table.json", tmp_path / "curve.png"
    options = ("--cluster", "2xv100", "--placers", "single,etf,random@20", "--seeds", "2", "--processes", "1")
    assert run("evaluate", graph_file, *options, "-o", out, "--curve", curve) == 0
    captured = capsys.readouterr()
    assert [row["seed"] for row in json.loads(out.read_text())["rows"]] == [0, 1] * 3
    assert "| single" in captured.out
    assert (
        "1 graph on 2xv100, dispatch priority, no budget for single, etf; 20 simulations for random@20, 2 seeds"
        in captured.out
    )
    assert (tmp_path / "table.md").read_text() == captured.out[:-1]
    assert "evaluating: 100 %" in captured.err
    assert curve.stat().st_size > 1000


@pytest.mark.parametrize(
    ("placers", "says"),
    [
        ("single@5,mine=etf@5", "on 2xv100, dispatch priority, 5 simulations, 1 seed\n"),
        (
            "single,placeto@pass",
            "dispatch priority, 9 simulations or 60 seconds for single; no budget for placeto@pass, 1 seed\n",
        ),
    ],
)
def test_evaluate_says_which_budgets(
    placers: str, says: str, graph_file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    budget = ("--simulations", "9", "--seconds", "60")
    options = ("--cluster", "2xv100", "--placers", placers, "--processes", "1", *budget)
    assert run("evaluate", graph_file, *options) == 0
    assert says in capsys.readouterr().out


def test_evaluate_says_that_a_policy_was_trained_on_its_graphs(
    graph_file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster, out = ("--cluster", "2xv100"), tmp_path / "run"
    assert run("train", graph_file, *cluster, "--placer", "mlp", "--iterations", 1, "--out", out) == 0
    renamed = tmp_path / "renamed.json"
    ops = [op | {"name": op["name"] * 2, "inputs": [[n * 2, o] for n, o in op.get("inputs", [])]} for op in OPS]
    save_graph(ComputationGraph.from_ops("renamed", ops), renamed)
    other = tmp_path / "other.json"
    save_graph(ComputationGraph.from_ops("other", OPS[:3]), other)
    capsys.readouterr()
    placers = ("--placers", "etf,mlp,mlp@3", "--checkpoint", out, "--processes", "1")
    assert run("evaluate", renamed, other, *cluster, *placers) == 0
    says = f"note: the policy in {out} was trained on 1 of these 2 graphs: {renamed} (as {graph_file})\n"
    assert capsys.readouterr().err.count(says) == 1
    assert run("evaluate", other, *cluster, *placers) == 0
    assert "was trained on" not in capsys.readouterr().err


def test_where_nothing_takes_time_all_placers_are_level(
    graph_file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    idle = tmp_path / "idle.json"
    save_graph(ComputationGraph.from_ops("idle", [{"name": "a", "outputs": [4]}]), idle)
    assert run("evaluate", idle, "--cluster", "2xv100", "--placers", "single,etf,anneal@9", "--processes", "1") == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines() if line.startswith("| ")][2:]
    assert [row[3] for row in rows] == ["1.000"] * 3


def test_evaluate_files_of_one_name_and_families_on_several_clusters(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [tmp_path / folder / "fork.json" for folder in ("one", "two")]
    for number, file in enumerate(files):
        file.parent.mkdir()
        ops = [op | {"time_us": {"*": op["time_us"]["*"] * (number + 1)}} for op in OPS]
        save_graph(ComputationGraph.from_ops("fork", ops), file)
    out = tmp_path / "table.json"
    more = ("ptb:validation:1", "--family", "ptb", "--split", "validation", "--count", "1")
    options = ("--cluster", "2xv100,4xv100", "--placers", "single,heft", "--processes", "1", "-o", out)
    assert run("evaluate", *files, *more, *options) == 0
    rows = json.loads(out.read_text())["rows"]
    names = ["ptb:validation:0", *map(str, files), "ptb:validation:1"]
    assert [(row["cluster"], row["graph"]) for row in rows[::2]] == [
        (cluster, name) for cluster in ("2xv100", "4xv100") for name in names
    ]
    single = {row["graph"]: row["makespan_us"] for row in rows if row["placer"] == "single"}
    assert single[str(files[1])] > 1.9 * single[str(files[0])]
    tables = capsys.readouterr().out
    assert "4 graphs on 2xv100, dispatch priority, no budget, 1 seed\n" in tables
    assert "4 graphs on 4xv100, dispatch priority, no budget, 1 seed\n" in tables
    assert (tmp_path / "table.md").read_text() == tables[:-1]
    evaluated = out.read_bytes()
    assert run("evaluate", *files, *more, *options) == 0
    assert out.read_bytes() == evaluated, "seconds would differ if rows were made again"


@pytest.mark.skipif(not SHARED.is_dir(), reason="no files of other programs")
def test_evaluate_files_of_other_programs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [*SHARED.glob("pipedream/*.graph.txt"), *SHARED.glob("dnn-partitioning/*-inputs/*/*.json")]
    assert len(files) > 5
    out = tmp_path / "table.json"
    options = ("--cluster", "4xv100", "--placers", "heft,m-sct,anneal@100", "--processes", "1", "-o", out)
    assert run("evaluate", *files, *options) == 0
    rows = json.loads(out.read_text())["rows"]
    assert len(rows) == 3 * len(files)
    assert all(row["fits"] and row["makespan_us"] >= row["lower_bound_us"] for row in rows)
    assert f"{len(files)} graphs on 4xv100" in capsys.readouterr().out
    expert = SHARED / "dnn-partitioning" / "human-experts" / "bert24_inference_expert.json"
    assert "bert24_inference_expert.json: not a graph file" in fails(capsys, "evaluate", expert, *options)


def test_evaluate_says_what_the_policy_of_the_package_was_trained_on(capsys: pytest.CaptureFixture[str]) -> None:
    graphs = ("ptb:test:0", "nmt:train:1", "nmt:train:25", "nmt:validation:3")
    options = ("--cluster", "2xv100", "--placers", "placeto", "--simulations", "1", "--processes", "1")
    for given in ((), ("--checkpoint", "pretrained")):
        assert run("evaluate", *graphs, *options, *given) == 0
        printed, said = capsys.readouterr()
        assert "| placeto |" in printed
        assert "note: the policy of the package was trained on 1 of these 4 graphs: nmt:train:1\n" in said
        assert "chosen by" not in said  # its parameters are those at the end of the training
