import json
import re
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from placeto import cli
from placeto.checkpoint import load_checkpoint
from placeto.cluster import load_cluster, save_cluster
from placeto.cost import PlacementProblem
from placeto.graph import ComputationGraph, load_graph, save_graph
from placeto.simulator import simulate
from tests.toys import fork_of_chains

SHARED = Path(__file__).parents[2] / "shared" / "data"
OPS = [
    {"name": "a", "type": "mm", "outputs": [1000], "module": "head", "time_us": {"*": 300.1}, "param_bytes": 40},
    {"name": "b", "type": "mm", "inputs": [["a", 0]], "outputs": [1000], "module": "left", "time_us": {"*": 700.7}},
    {"name": "c", "type": "mm", "inputs": [["a", 0]], "outputs": [1000], "module": "right", "time_us": {"*": 800.3}},
    {"name": "d", "type": "add", "inputs": [["b", 0], ["c", 0]], "module": "tail", "time_us": {"*": 10.9}},
]


@pytest.fixture
def graph_file(tmp_path: Path) -> str:
    save_graph(ComputationGraph.from_ops("fork", OPS), tmp_path / "fork.json")
    return str(tmp_path / "fork.json")


def run(*arguments: object) -> int:
    """Exit status of the command."""
    with pytest.raises(SystemExit) as stop:
        cli.main([str(argument) for argument in arguments])
    return int(stop.value.code or 0)


def fails(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """The message of a user error, which must be one line and exit status 2."""
    assert run(*arguments) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("error: ")
    assert captured.err.count("\n") == 1
    assert captured.out == ""
    return captured.err


def test_help_is_quick_and_lists_the_commands() -> None:
    code = "import sys, placeto, placeto.cli; print('torch' in sys.modules, 'numba' in sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert loaded == "False False\n"
    began = time.perf_counter()
    result = subprocess.run([sys.executable, "-m", "placeto", "--help"], capture_output=True, text=True, check=True)
    assert time.perf_counter() - began < 5.0  # 0.1 s on an idle machine
    assert all(f"\n  {command}" in result.stdout for command in cli.COMMANDS)


@pytest.mark.parametrize("command", list(cli.COMMANDS))
def test_help_of_each_command(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(command, "--help") == 0
    captured = capsys.readouterr()
    assert captured.out.startswith(f"usage: placeto {command}")
    assert captured.err == ""


def test_lists_have_a_name_and_a_sentence_on_each_line(capsys: pytest.CaptureFixture[str]) -> None:
    for what, expected in (("clusters", "4xv100"), ("placers", "placeto"), ("placers", "etf")):
        assert run("list", what) == 0
        lines = capsys.readouterr().out.splitlines()
        assert expected in [line.split()[0] for line in lines]
        assert all(len(line.split(maxsplit=1)[1]) > 10 for line in lines)


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
    line = f"makespan_us  {document['makespan_us']!r}\n"
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


def test_place_with_the_default_placer_finds_the_optimum(graph_file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("place", graph_file, "--cluster", "2xv100", "--simulations", "200") == 0
    out = capsys.readouterr().out
    assert "placer       anneal" in out
    makespan = float(out.split("makespan_us  ")[1].split()[0])
    assert makespan < 1300.0  # both branches at once; 1812 + overheads on one device


@pytest.mark.parametrize("budget", [("--simulations", "50"), ("--seconds", "0.2")])
def test_place_what_takes_no_time(budget: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    idle = ComputationGraph.from_ops("idle", [{"name": "a", "outputs": [4]}, {"name": "b", "inputs": [["a", 0]]}])
    save_graph(idle, tmp_path / "idle.json")
    assert run("place", tmp_path / "idle.json", "--cluster", "2xv100", *budget) == 0
    out = capsys.readouterr().out
    assert "makespan_us  0.0" in out
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


def test_evaluate_prints_and_writes_a_table(
    graph_file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, curve = tmp_path / "table.json", tmp_path / "curve.png"
    options = ("--cluster", "2xv100", "--placers", "single,etf,random@20", "--seeds", "2", "--processes", "1")
    assert run("evaluate", graph_file, *options, "-o", out, "--curve", curve) == 0
    captured = capsys.readouterr()
    assert [row["seed"] for row in json.loads(out.read_text())["rows"]] == [0, 1] * 3
    assert "| single" in captured.out
    assert "1 graph on 2xv100, no budget, 2 seeds" in captured.out
    assert (tmp_path / "table.md").read_text() == captured.out[:-1]
    assert "evaluating: 100 %" in captured.err
    assert curve.stat().st_size > 1000


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
    assert "4 graphs on 2xv100, no budget, 1 seed\n" in tables
    assert "4 graphs on 4xv100, no budget, 1 seed\n" in tables
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


def test_place_says_that_nothing_fits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ops = [op | {"param_bytes": 9 * 10**9} for op in OPS]
    save_graph(ComputationGraph.from_ops("huge", ops), tmp_path / "huge.json")
    for placer in ("single", "heft", "anneal"):
        out = tmp_path / f"{placer}.json"
        assert run("place", tmp_path / "huge.json", "--cluster", "2xv100", "--placer", placer, "-o", out) == 0
        captured = capsys.readouterr()
        assert captured.err.startswith(f"note: {placer} found no placement of ")
        assert captured.err.count("\n") == 1
        assert re.search(r"^fits         no: gpu:\d needs \d+\.\d\d of 16\.00 GB", captured.out, re.MULTILINE)
        assert json.loads(out.read_text())["fits"] is False


def test_train_place_simulate_agree_exactly(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for i in range(3):
        ops = [op | {"time_us": {"*": op["time_us"]["*"] * (i + 1)}} for op in OPS]
        save_graph(ComputationGraph.from_ops(f"fork{i}", ops), tmp_path / f"fork{i}.json")
    train, validation, test = (tmp_path / f"fork{i}.json" for i in range(3))
    on, checkpoint, placement = ("--cluster", "2xv100"), tmp_path / "run", tmp_path / "p.json"
    small = ("--iterations", "2", "--learning.graphs", "1", "--learning.replicas", "2", "--learning.moves", "3")
    graphs = (train, "--validation-graphs", validation)
    assert run("train", *on, *graphs, "--out", checkpoint, "--threads", "1", *small) == 0
    captured = capsys.readouterr()
    assert f"tensorboard --logdir {checkpoint}" in captured.out
    assert "training: 100 %" in captured.err
    again = fails(capsys, "train", *on, *graphs, "--out", checkpoint)
    assert "holds a checkpoint already; add --resume" in again
    assert run("place", test, *on, "--checkpoint", checkpoint, "-o", placement) == 0
    assert "placer       placeto" in capsys.readouterr().out
    assert run("simulate", test, *on, "--placement", placement) == 0
    captured = capsys.readouterr()
    assert f"makespan_us  {json.loads(placement.read_text())['makespan_us']!r}\n" in captured.out
    assert captured.err == ""
    assert "holds the placer 'placeto', not 'etf'" in fails(
        capsys, "place", test, *on, "--checkpoint", checkpoint, "--placer", "etf"
    )
    options = ("--checkpoint", checkpoint, "--placers", "placeto@pass,mine=placeto", "--simulations", "30")
    assert run("evaluate", test, *on, *options, "--processes", "1") == 0
    assert "| mine " in capsys.readouterr().out


@pytest.mark.parametrize("placer", ["placeto", "seq2seq", "grouper", "gdp"])
def test_train_for_one_graph_then_fine_tune(placer: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, other = (tmp_path / f"fork{i}.json" for i in range(2))
    for i, path in enumerate((one, other)):
        save_graph(fork_of_chains(3 + i, 2).graph, path)
    on = ("--cluster", "2xv100")
    small = ["--iterations", "1", "--learning.graphs", "1"]
    small += ["--learning.replicas", "2", "--learning.moves", "2"] if placer == "placeto" else ["--policy.hidden", "16"]
    assert run("train", one, *on, "--placer", placer, "--out", tmp_path / "a", *small) == 0
    captured = capsys.readouterr()
    assert "the training graphs choose the parameters" in captured.err
    if placer in ("placeto", "gdp"):  # the others only imitate in their first iteration
        assert f"best met     {one}: " in captured.out
        assert run("simulate", one, *on, "--placement", tmp_path / "a" / "placement-0.json") == 0
    # the policy's settings come with the checkpoint
    tuned = [option for option in small if option not in ("--policy.hidden", "16")]
    start = ("--checkpoint", tmp_path / "a")
    assert run("train", other, *on, *start, "--out", tmp_path / "b", *tuned) == 0
    assert load_checkpoint(tmp_path / "b")["placer"] == placer
    assert run("place", other, *on, "--checkpoint", tmp_path / "b") == 0
    assert f"placer       {placer}: " in capsys.readouterr().out
    wrong = "gdp" if placer == "placeto" else "placeto"
    says = fails(capsys, "train", other, *on, *start, "--placer", wrong, "--out", tmp_path / "c")
    assert f"holds the placer {placer!r}, not {wrong!r}" in says


def test_help_of_train_shows_the_policy_of_the_placer(capsys: pytest.CaptureFixture[str]) -> None:
    for placer, option in (("placeto", "--env.tolerance"), ("grouper", "--policy.groups"), ("gdp", "--policy.segment")):
        assert run("train", f"--placer={placer}", "--help") == 0
        assert option in capsys.readouterr().out
    assert "learned placers: placeto, seq2seq" in fails(capsys, "train", "--placer", "foo")


def test_graphs_of_families(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("list", "families") == 0
    assert capsys.readouterr().out.startswith("cifar10 ")
    assert run("place", "ptb:test:0", "--cluster", "2xv100", "--placer", "single") == 0
    assert "1.0000 of the best single device" in capsys.readouterr().out
    on = ("--cluster", "2xv100", "--placer", "single")
    assert "has no split 'tests'; its splits: train, validation, test" in fails(capsys, "place", "ptb:tests:0", *on)
    assert "index must be 0 to 31, not '32'" in fails(capsys, "place", "ptb:test:32", *on)
    assert "index must be 0 to 31, not '-1'" in fails(capsys, "place", "ptb:test:-1", *on)
    assert "known: cifar10, ptb, nmt" in fails(
        capsys, "train", "--family", "cifar", "--out", "x", "--cluster", "2xv100"
    )


def model() -> tuple[nn.Module, list[torch.Tensor], object]:
    return nn.Linear(8, 4), [torch.empty(2, 8)], lambda output: output.sum()


@pytest.mark.parametrize(("options", "mode"), [((), "training"), (("--inference",), "inference")])
def test_capture(options: tuple[str, ...], mode: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "linear.json"
    assert run("capture", "tests.test_cli:model", "-o", out, *options) == 0
    assert mode in capsys.readouterr().out
    graph = load_graph(out)
    assert (graph.name, graph.mode) == ("linear", mode)
    assert "aten.addmm" in graph.op_types


@pytest.mark.parametrize(
    ("factory", "says"),
    [
        ("model", "must be package.module:function"),
        ("no.such:model", "there is no module 'no'"),
        ("tests.test_cli:nothing", "has no function 'nothing'"),
        ("tests.test_cli:OPS", "is no function"),
        ("tests.test_cli:cyclic", "must return (module, inputs)"),
    ],
)
def test_bad_factories(factory: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert says in fails(capsys, "capture", factory, "-o", tmp_path / "graph.json")


def test_graphs_of_other_programs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    times = "forward_compute_time=1.0, backward_compute_time=2.0, activation_size=4.0, parameter_size=8.0"
    lines = [f"node{i} -- Linear(i) -- {times}" for i in (1, 2)] + ["\tnode1 -- node2"]
    (tmp_path / "profile.graph.txt").write_text("\n".join(lines) + "\n")
    assert run("place", tmp_path / "profile.graph.txt", "--cluster", "2xv100", "--placer", "single") == 0
    assert "1.0000 of the best single device" in capsys.readouterr().out
    (tmp_path / "bad.graph.txt").write_text("nonsense")
    assert "bad.graph.txt" in fails(capsys, "place", tmp_path / "bad.graph.txt", "--cluster", "2xv100")


def cyclic() -> str:
    ops = [{"name": "a", "inputs": [["b", 0]], "outputs": [1]}, {"name": "b", "inputs": [["a", 0]], "outputs": [1]}]
    return json.dumps({"format": "placeto.graph/1", "name": "x", "ops": ops})


def not_a_number() -> str:
    return json.dumps({"format": "placeto.graph/1", "name": "x", "ops": [{"name": "a", "flops": float("nan")}]})


@pytest.mark.parametrize(
    ("content", "says"),
    [(cyclic(), "on a cycle"), (not_a_number(), "'a'"), ("{", "not valid JSON"), ("[]", "not a graph file")],
)
def test_bad_graph_files(content: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "bad.json"
    path.write_text(content)
    message = fails(capsys, "place", path, "--cluster", "2xv100", "--placer", "single")
    assert "bad.json" in message
    assert says in message


@pytest.mark.parametrize(
    ("graph", "says"),
    [
        ("missing.json", "no such file"),
        ("nofamily:test:0", "unknown graph family 'nofamily'; known: "),
        ("a:b:c:d", "no such file"),
        (".", "is a directory"),
        (__file__, "unknown kind of graph file; a graph is a file (.json, .json.gz, PipeDream .graph.txt"),
    ],
)
def test_unknown_graphs(graph: str, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert says in fails(capsys, "place", graph, "--cluster", "2xv100", "--placer", "single")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((), "Missing from placeto place: GRAPH"),
        (("x.json",), "--cluster"),
        (("x.json", "--cluster", "4xv100", "--nonsense", "1"), "Unrecognized options: --nonsense"),
        (("x.json", "--cluster", "4xv100", "--seed", "q"), "--seed"),
        (("x.json", "--cluster", "4xv100", "--simulations", "0"), "--simulations must be above 0"),
        (("x.json", "--cluster", "4xv100", "--seconds", "nan"), "--seconds must be above 0"),
        (("x.json", "--cluster", "4xv100", "-o", "no/such/dir/p.json"), "directory no/such/dir doesn't exist"),
        (("x.json", "--cluster", "4xv100", "--plot", "p.bmp"), "must end in .png, .svg, .pdf"),
        (("x.json", "--cluster", "4xv100", "--placer", "nonsense"), "placers: single"),
        (("x.json", "--cluster", "4xv100", "--placer", "placeto"), "give a checkpoint"),
        (("x.json", "--cluster", "4xv100", "--checkpoint", "nothing.pt"), "nothing.pt: no such file"),
    ],
)
def test_bad_arguments_of_place(arguments: tuple[str, ...], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert says in fails(capsys, "place", *arguments)


def test_unknown_commands_and_clusters(graph_file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert "commands: train, place" in fails(capsys, "plaice")
    assert "commands: train, place" in fails(capsys, "--plaice")
    assert "4xv100" in fails(capsys, "place", graph_file, "--cluster", "5xv100", "--placer", "single")
    assert "families" in fails(capsys, "list", "everything")


def test_bad_cluster_and_checkpoint_files(graph_file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_cluster(load_cluster("2xv100"), tmp_path / "cluster.json")
    document = json.loads((tmp_path / "cluster.json").read_text())
    document["bandwidth"] = [[1.0, 1.0]]
    (tmp_path / "cluster.json").write_text(json.dumps(document))
    message = fails(capsys, "place", graph_file, "--cluster", tmp_path / "cluster.json", "--placer", "single")
    assert "cluster.json" in message
    assert "bandwidth" in message
    checkpoint = ("--checkpoint", graph_file)
    assert "fork.json: not a checkpoint" in fails(capsys, "place", graph_file, "--cluster", "2xv100", *checkpoint)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"format": "other"}, "not a placement file"),
        ({"extra": 1}, "unknown field 'extra'"),
        ({"placement": ["gpu:0"]}, "must be an object"),
        ({"placement": {"a": "gpu:0"}}, "op 'b' of graph 'fork' has no device"),
        ({"placement": dict.fromkeys("abcd", "tpu")}, "device 'tpu' is not in cluster '2xv100'"),
        ({"placement": dict.fromkeys("abcde", "gpu:0")}, "op 'e' of the placement is not in graph"),
        ({"graph_hash": "0" * 64}, "another graph"),
    ],
)
def test_bad_placement_files(
    change: dict[str, object], says: str, graph_file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    placement = tmp_path / "p.json"
    document = {"format": "placeto.placement/1", "placement": dict.fromkeys("abcd", "gpu:0")} | change
    placement.write_text(json.dumps(document))
    assert says in fails(capsys, "simulate", graph_file, "--cluster", "2xv100", "--placement", placement)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--placers", "single"), "give graphs (files or family:split:index) or --family NAME"),
        (("--placers", ",", "GRAPH"), "names no placer"),
        (("--placers", "single", "GRAPH", "--seeds", "0"), "--seeds must be above 0"),
        (("--placers", "single", "GRAPH", "-o", "table.csv"), "must end in .json or .json.gz"),
        (("--placers", "single,single", "GRAPH"), "share one label"),
        (("--placers", "single", "--family", "nofamily"), "unknown graph family"),
        (("--placers", "single", "GRAPH", "--simulations", "0"), "--simulations must be above 0"),
        (("--placers", "single", "GRAPH", "nothing.json"), "nothing.json"),
        (("--placers", "single", "GRAPH", "--cluster", "2xv100,4xv100,2xv100"), "2 clusters are called '2xv100'"),
        (("--placers", "single", "GRAPH", "--cluster", "2xv100,nothing"), "nothing"),
        (("--placers", "single", "GRAPH", "--cluster", ","), "names no cluster"),
    ],
)
def test_bad_arguments_of_evaluate(
    arguments: tuple[str, ...], says: str, graph_file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [graph_file if argument == "GRAPH" else argument for argument in arguments]
    on = () if "--cluster" in given else ("--cluster", "2xv100")
    assert says in fails(capsys, "evaluate", *given, *on)


def test_errors_of_our_own_are_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    from placeto.commands import list as list_command

    def bug(arguments: object) -> None:
        raise ValueError("a bug")

    monkeypatch.setattr(list_command, "run", bug)
    with pytest.raises(ValueError, match="a bug"):
        cli.main(["list", "clusters"])


def test_interruption_exits_with_130(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from placeto.commands import list as list_command

    def interrupt(arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(list_command, "run", interrupt)
    assert run("list", "clusters") == 130
    assert capsys.readouterr().err == "interrupted\n"


def test_a_reader_that_goes_away_is_no_error(graph_file: str) -> None:
    command = f"{sys.executable} -m placeto list clusters | head -1"
    result = subprocess.run(command, shell=True, capture_output=True, text=True, check=True)
    assert result.stderr == ""
