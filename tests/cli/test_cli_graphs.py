"""Functions of the user's code where a graph is expected, and what is told to those who mistype them."""

import json
import re
import sys
from pathlib import Path

import pytest

from placeto import PlacementResult, capture_inference, capture_training, load_placement, place
from placeto.cli.profile import real_step_of
from placeto.cli.shared.options import TraceOptions
from placeto.cli.train import _graphs
from placeto.formats.report import page
from tests.command_line import fails, run

MODEL = """
import torch
from torch import nn

class Pair(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.left, self.right = nn.Linear(width, width), nn.Linear(width, width)
    def forward(self, x):
        return self.left(x) + self.right(x).relu()

class Net(nn.Module):
    _no_split_modules = ["Pair"]
    def __init__(self, width):
        super().__init__()
        self.first, self.second, self.last = Pair(width), Pair(width), nn.Linear(width, 4)
        self.idle = Pair(width)
    def forward(self, x):
        return self.last(self.second(self.first(x)) + x)

def train(width=8):
    return Net(width), [torch.empty(16, width)], lambda y: y.square().mean()

def bare():
    return Net(8), [torch.empty(16, 8)]

def classes():
    return Net(8), [torch.empty(16, 8)], None, [torch.zeros(16, dtype=torch.int64)]

def own_loss(output):
    return output.sum()

def no_inputs():
    return Net(8), torch.empty(16, 8), own_loss

def loss_by_name():
    return Net(8), [torch.empty(16, 8)], "mse"

def loss_last():
    return Net(8), [torch.empty(16, 8)], [torch.empty(16, 8)], own_loss

def wide():
    return Net(8), [torch.empty(16, 9)], own_loss

def alone():
    return Net(8)
"""
ON = ("--cluster", "2xv100", "--placer", "heft")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "net", raising=False)  # of another test in this process
    Path("net.py").write_text(MODEL)


def graph_of(name: str, **options: object) -> str:
    """The hash of what `capture` of the library makes of a factory."""
    import importlib.util

    import torch

    spec = importlib.util.spec_from_file_location("net_of_tests", "net.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    with torch.device("meta"):
        net, inputs, *rest = getattr(module, name)()
    if options.pop("inference", False):
        return capture_inference(net, inputs, **options).hash  # type: ignore[arg-type]
    loss = options.pop("loss", rest[0] if rest else None)
    return capture_training(net, inputs, loss, targets=rest[1] if len(rest) > 1 else (), **options).hash  # type: ignore


@pytest.mark.parametrize(
    ("factory", "words", "options"),
    [
        ("train", (), {}),
        ("train", ("--micro-batches", "4"), {"micro_batches": 4}),
        ("train", ("--precision", "bf16", "--optimizer", "sgd"), {"precision": "bf16", "optimizer": "sgd"}),
        ("train", ("--optimizer-step",), {"optimizer_step": True}),
        ("train", ("--inference",), {"inference": True}),
        ("bare", ("--loss", "mean"), {"loss": lambda y: y.mean()}),
        ("bare", ("--loss", "net.py:own_loss"), {"loss": lambda y: y.sum()}),
    ],
    ids=" ".join,
)
def test_a_function_is_captured_as_the_library_would(
    factory: str, words: tuple[str, ...], options: dict[str, object]
) -> None:
    assert run("place", f"net.py:{factory}", *ON, "-o", "p.json", *words) == 0
    assert load_placement("p.json").graph_hash == graph_of(factory, **options)


def test_losses_of_torch_take_the_targets() -> None:
    from torch.nn.functional import cross_entropy

    assert (
        run("place", "net:classes", *ON, "-o", "p.json", "--loss", "cross_entropy") == 0
    )  # a module found in the folder
    assert load_placement("p.json").graph_hash == graph_of("classes", loss=cross_entropy)


def test_all_commands_take_it(capsys: pytest.CaptureFixture[str]) -> None:
    """Each says of the function what it says of the file that `placeto capture` writes."""
    split, named = ("--micro-batches", "2"), "net.py:train(width=8)"
    assert run("capture", named, "-o", "net.json", *split) == 0
    assert run("place", named, *ON, "-o", "p.json", *split) == 0
    capsys.readouterr()
    said = []
    for graph, words in (("net.json", ()), (named, split)):
        with_placement = (graph, *words, "--cluster", "2xv100", "--placement", "p.json")
        assert run("simulate", *with_placement) == 0
        assert run("export", *with_placement, "-o", "map.json", "--format", "device-map") == 0
        printed = capsys.readouterr().out.replace(graph, "it")
        assert run("report", *with_placement, "-o", "page.html", "--against", "none") == 0
        on = ("--placers", "single", "--processes", "1", "-o", f"rows-{len(said)}.json")
        assert run("evaluate", graph, *words, "--cluster", "2xv100", *on) == 0
        (row,) = json.loads(Path(f"rows-{len(said)}.json").read_text())["rows"]
        times = row["makespan_us"], row["lower_bound_us"]
        title = re.search("<title>.*</title>", Path("page.html").read_text().replace(graph, "it"))
        said.append((printed, Path("map.json").read_text(), title and title[0], times))
        capsys.readouterr()
    assert said[0] == said[1]


def test_modules_that_must_not_be_split_are_kept_as_the_library_keeps_them() -> None:
    import torch

    assert run("place", "net.py:train", *ON, "--whole-modules", "--whole", "last", "-o", "p.json") == 0
    file = load_placement("p.json")
    assert file.whole_modules == ["last", "first", "second", "idle"]
    space: dict[str, object] = {}
    exec(MODEL, space)
    with torch.device("meta"):
        net, inputs, loss = space["train"]()  # type: ignore[operator]
    result = place(net, inputs, loss=loss, cluster="2xv100", placer="heft", whole_modules=["last"])
    assert result.devices() == file.placement
    assert result.makespan_us == file.makespan_us
    of = {name: {file.placement[op] for op in file.placement if op.startswith(name)} for name in ("first", "second")}
    assert all(len(devices) == 1 for devices in of.values()), of


def test_the_report_places_rivals_in_whole_modules_too(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[dict[str, PlacementResult]] = []
    real = page._compared
    monkeypatch.setattr(page, "_compared", lambda s, p, rivals, w: shown.append(rivals) or real(s, p, rivals, w))
    free = ("place", "net.py:train(width=2048)", "--cluster", "2xv100", "--placer", "single", "--report", "page.html")
    assert run(*free, "-o", "free.json") == 0
    assert "in whole modules as well" not in (text := Path("page.html").read_text())
    assert "<td>etf</td>" in text
    assert run(*free, "--whole-modules", "-o", "whole.json") == 0
    assert "in whole modules as well" in Path("page.html").read_text()
    again = ("report", free[1], *free[2:4], "-o", "page.html", "--placement")
    assert run(*again, "whole.json") == 0
    assert run(*again, "free.json") == 0
    times = [{name: rival.makespan_us for name, rival in rivals.items()} for rivals in shown]
    assert times[1] == times[2]
    assert times[0] == times[3]
    assert times[0]["etf"] < times[1]["etf"], "towers inside a pair can't be split"


def test_a_placement_of_another_graph_is_refused_as_such(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("place", "net.py:train", *ON, "-o", "p.json") == 0
    capsys.readouterr()
    on = ("--placement", "p.json", "--cluster", "2xv100")
    local = ("--placement", "p.json", "--devices", "cpu:0,cpu:1")
    for words in (
        ("simulate", "net.py:bare", "--inference", *on),
        ("simulate", "net.py:train", "--micro-batches", "2", *on),
        ("simulate", "cifar10:test:0", *on),
        ("report", "net.py:train", "--precision", "bf16", *on, "-o", "a.html"),
        ("export", "net.py:train(width=16)", *on, "-o", "a.json", "--format", "device-map"),
        ("run", "net.py:train", *local, "--inference"),
        ("run", "net.py:train", *local, "--set", "width=16"),
    ):
        message = fails(capsys, *words)
        assert message.startswith("error: p.json: the placement is for another graph: its hash begins with '"), message
        assert message.endswith("captured with the same options and sizes with which it was placed\n"), message


MISTAKES = [
    ("net.py", "name the function in it that returns (module, inputs, loss); there are net.py:train, net.py:bare"),
    ("net", "net.py is a file: write net.py:FUNCTION"),
    ("empty.py", "name the function in it that returns (module, inputs, loss); there is none"),
    ("empty.py:train", "empty.py has no function 'train'"),
    ("nothing.py", "there is no such file"),
    ("nothing.py:train", "there is no file 'nothing.py'"),
    ("nothing:train", "there is no module 'nothing'; looked in "),
    ("net.py:tain", "net.py has no function 'tain'; there are alone, bare, "),
    ("net.py:", "name the function in it that returns (module, inputs), "),
    ("net.py:train(width=w)", "its arguments must be Python literals"),
    ("net.py:train(depth=4)", "unexpected keyword argument 'depth'; it is train(width=8)"),
    ("net.py:alone", "not the module alone: its inputs are needed as well"),
    ("built.py:model", "'model' is a module: name a function, which must return (module, inputs), "),
    ("net.py:no_inputs", "inputs must be a sequence of arguments, such as [x], not a tensor"),
    ("net.py:loss_by_name", "the loss must be a function of the module's output, not a str"),
    ("net.py:loss_last", "(module, inputs, loss, targets), not a tuple of Net, list, list, function"),
    ("net.py:wide", "module 'first.left' (Linear), net.py:10: "),
    ("net.py:bare", "return (module, inputs, loss), or add --loss mean, or --inference"),
    ("folder/net:train", "folder/net.py is a file: write folder/net.py:"),
    ("notebook.ipynb", "a notebook can't be read: save its code as a .py file"),
    ("notebook.ipynb:train", "a notebook can't be read: save its code as a .py file"),
    ("grap.json", "no such file; there is graph.json"),
    ("graph.json:0", "graph.json is a file: leave out ':0'"),
    ("empty.json", "empty.json: not valid JSON: the file is empty"),
    ("folder", "is a directory, give its files (folder/*.json); a graph is a file (.json, .json.gz, .onnx, "),
    ("", "the name of a graph is empty; a graph is a file"),
    ("C:\\nets\\graph.json", "no such file"),
    ("C:\\nets\\net.py:train", "there is no file 'C:\\\\nets\\\\net.py'"),
    ("no/such/graph.json", "there is no folder 'no/such'"),
    ("cifar10", "cifar10 is a family of graphs: write cifar10:train:0, its splits are train, validation, test"),
    ("cifar10:test", "cifar10 is a family of graphs: write cifar10:test:0"),
    ("cifar10:test:x", "index must be 0 to 31, not 'x'"),
    ("cifar10:test:32", "index must be 0 to 31, not '32'"),
    ("cifar10:tests:0", "has no split 'tests'; its splits: train, validation, test"),
    ("nofamily:test:0", "unknown graph family 'nofamily'; known: "),
    ("folder/README.md", "unknown kind of graph file; a graph is a file (.json, .json.gz, .onnx, PipeDream .graph.txt"),
    (
        "no such thing",
        "no such file; a graph is a file (.json, .json.gz, .onnx, PipeDream .graph.txt, dnn-partitioning",
    ),
]


@pytest.mark.parametrize(("graph", "says"), MISTAKES, ids=[graph for graph, _ in MISTAKES])
def test_graphs_that_are_none(graph: str, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("folder").mkdir()
    Path("folder/net.py").write_text(MODEL)
    for empty in ("empty.py", "empty.json", "notebook.ipynb", "folder/README.md"):
        Path(empty).touch()
    Path("graph.json").write_text("{}")
    Path("built.py").write_text("from torch import nn\n\nmodel = nn.Linear(2, 2)")
    assert says in fails(capsys, "place", graph, *ON)


def test_graphs_to_train_on() -> None:
    (graph,) = _graphs(None, "train", ("net.py:train",), ("width=4",), None).values()
    assert graph.param_bytes.sum() == 4 * (7 * 4 * 4 + 7 * 4)


def test_a_step_to_be_run_takes_a_loss_by_name() -> None:
    step = real_step_of("net.py:bare", TraceOptions(loss="mean"))
    assert step.capture.graph.hash == graph_of("bare", loss=lambda y: y.mean())


def test_the_optimizer_decides_the_memory() -> None:
    assert run("place", "net.py:train", *ON, "-o", "adam.json") == 0
    assert run("place", "net.py:train", *ON, "-o", "sgd.json", "--optimizer", "sgd") == 0
    adam, sgd = (sum(load_placement(f"{name}.json").peak_memory.values()) for name in ("adam", "sgd"))
    assert adam > sgd


def test_the_page_on_capture() -> None:
    """Its factories, and its commands that place them and simulate a placement, work as they stand there."""
    text = (Path(__file__).parents[2] / "docs" / "capture.md").read_text()
    zoo, encoder = re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    Path("zoo.py").write_text(zoo)
    Path("encoder.py").write_text(encoder.replace("layers: int = 6", "layers: int = 1"))
    (chosen,) = re.findall(r"`placeto (place encoder\.py:net .*) --simulations 600`", text)
    assert run(*chosen.split(), "--simulations", "150") == 0
    commands = re.findall(r"^placeto ((?:place|simulate) zoo\.py:net .*)$", text, re.MULTILINE)
    assert [command.split()[0] for command in commands] == ["place", "simulate"]
    for command in commands:
        assert run(*command.split()) == 0
