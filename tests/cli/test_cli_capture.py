"""`placeto capture`."""

import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from placeto.problem.graph import load_graph
from tests.command_line import fails, run


def model() -> tuple[nn.Module, list[torch.Tensor], object]:
    return nn.Linear(8, 4), [torch.empty(2, 8)], lambda output: output.sum()


@pytest.mark.parametrize(("options", "mode"), [((), "training"), (("--inference",), "inference")])
def test_capture(options: tuple[str, ...], mode: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "linear.json"
    assert run("capture", "tests.cli.test_cli_capture:model", "-o", out, *options) == 0
    assert mode in capsys.readouterr().out
    graph = load_graph(out)
    assert (graph.name, graph.mode) == ("linear", mode)
    assert "aten.addmm" in graph.op_types


def deep(depth: int, width: int = 4, name: str = "") -> tuple[nn.Module, list[torch.Tensor]]:
    return nn.Sequential(*[nn.Linear(width, width, bias=False) for _ in range(depth)]), [torch.empty(2, width)]


@pytest.mark.parametrize(
    ("factory", "options", "parameters"),
    [
        ("deep(3)", (), "192 B"),
        ("deep(depth=3)", ("--set", "width=400"), "1.92 MB"),
        ("deep", ("--set", "depth=2", "--set", "width=8", "--set", "name=any text"), "512 B"),
    ],
)
def test_factories_with_arguments(
    factory: str, options: tuple[str, ...], parameters: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = run("capture", f"tests.cli.test_cli_capture:{factory}", "-o", tmp_path / "g.json", "--inference", *options)
    printed = capsys.readouterr()
    assert code == 0, printed.err
    assert f"parameters   {parameters}\n" in printed.out


ZOO = """
import sys
from torch import nn
import torch
from beside import WIDTH

def net(depth=1):
    return nn.Sequential(*[nn.Linear(WIDTH, WIDTH) for _ in range(depth)]), [torch.empty(2, WIDTH)]

def leave():
    sys.exit("enough")

def broken():
    raise RuntimeError("first line\\nsecond line")

def value():
    return f"{torch.ones(2).sum():.2f}"

def moved():
    return nn.Linear(2, 2).to("cpu"), []

def no_driver():
    raise RuntimeError("Found no NVIDIA driver on your system.")

def step():
    return nn.Linear(WIDTH, WIDTH), [torch.empty(2, WIDTH)], lambda y: y.sum()
"""


def test_factories_in_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "zoo_of_tests.py").write_text(ZOO)
    (tmp_path / "beside.py").write_text("WIDTH = 8")
    zoo, out = tmp_path / "zoo_of_tests.py", tmp_path / "zoo.json"
    assert run("capture", f"{zoo}:net(depth=2)", "-o", out, "--inference") == 0
    capsys.readouterr()
    assert load_graph(out).op_types.count("aten.addmm") == 2
    assert run("capture", f"{zoo}:step", "-o", out, "--optimizer", "momentum") == 0
    capsys.readouterr()
    assert load_graph(out).state_bytes.sum() == 2 * load_graph(out).trained_bytes.sum() > 0
    for function, says in {
        "leave": "zoo_of_tests.py:11: sys.exit('enough') was called",
        "broken": "zoo_of_tests.py:14: RuntimeError: first line",
        "value": "zoo_of_tests.py:17: TypeError: ",
        "moved": "leave out .cuda(), .to(device) and device=",
        "no_driver": "leave out .cuda(), .to(device) and device=",
    }.items():
        assert says in fails(capsys, "capture", f"{zoo}:{function}", "-o", out)
    for name, content, says in (
        ("broken", "def f(:", "broken.py:1: SyntaxError"),
        ("leaves", "import sys\n\nsys.exit()", "leaves.py:3: sys.exit() was called"),
        ("stops", "raise type('Stop', (BaseException,), {})('now')", "stops.py:1: Stop: now"),
        ("lacks", "import no_such_package", "lacks.py:1: ModuleNotFoundError: No module named 'no_such_package'"),
    ):
        (tmp_path / f"{name}.py").write_text(content)
        assert says in fails(capsys, "capture", f"{tmp_path}/{name}.py:f", "-o", out)


def test_arguments_are_never_evaluated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gone = tmp_path / "gone"
    code = f"open({str(gone)!r}, 'w').close()"
    for factory in (
        f"deep({code})",
        f"deep(depth={code})",
        "deep(**{'depth': 1})",
        "deep(1)(2)",
        "deep()[0]",
        "deep;x",
    ):
        fails(capsys, "capture", f"tests.cli.test_cli_capture:{factory}", "-o", tmp_path / "g.json")
    for setting in ("depth", "=1", "1=1"):
        says = fails(capsys, "capture", "tests.cli.test_cli_capture:deep", "-o", tmp_path / "g.json", "--set", setting)
        assert "must be name=value" in says
    # text where a number is wanted is told by the factory
    told = fails(
        capsys, "capture", "tests.cli.test_cli_capture:deep", "-o", tmp_path / "g.json", "--set", f"depth={code}"
    )
    assert "test_cli_capture.py" in told
    assert "TypeError" in told
    assert not gone.exists()


def counting() -> tuple[nn.Module, list[torch.Tensor], object]:
    class Counting(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x[x.sum(1) > 0])

    return Counting(8, 4), [torch.ones(2, 8)], lambda output: output.sum()


def test_sizes_that_depend_on_values(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ("capture", "tests.cli.test_cli_capture:counting", "-o", tmp_path / "g.json")
    assert "or have the step computed once, by `placeto capture --run`" in fails(capsys, *command)
    assert run(*command, "--run", "--optimizer-step", "--optimizer", "sgd") == 0
    graph = load_graph(tmp_path / "g.json")
    assert [op for op in graph.op_names if op.endswith("/sgd")] == ["weight/sgd", "bias/sgd"]


def test_onnx_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    onnx = pytest.importorskip("onnx")
    infos = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["batch", 8]) for name in "xy"]
    product = onnx.helper.make_node("MatMul", ["x", "w"], ["y"])
    weight = onnx.helper.make_tensor("w", onnx.TensorProto.FLOAT, [8, 8], [0.0] * 64)
    file, out = tmp_path / "net.onnx", tmp_path / "net.json"
    onnx.save(onnx.helper.make_model(onnx.helper.make_graph([product], "g", infos[:1], infos[1:], [weight])), file)
    assert run("capture", file, "--dim", "batch=4", "-o", out) == 0
    assert "work         512 FLOP" in capsys.readouterr().out
    assert run("place", out, "--cluster", "2xv100", "--placer", "single") == 0
    capsys.readouterr()
    for arguments, message in (
        (("place", file, "--cluster", "2xv100"), "no value: 'batch'; placeto capture takes them, as in --dim batch=8"),
        (("capture", file, "-o", out), "the dimension has no value: 'batch'"),
        (("capture", file, "-o", out, "--dim", "batch"), "--dim 'batch': must be name=size"),
        (("capture", file, "-o", out, "--dim", "batch=4", "--micro-batches", "2"), "--micro-batches is for modules"),
        (("capture", tmp_path / "no.onnx", "-o", out), "there is no file"),
    ):
        assert message in fails(capsys, *arguments)


@pytest.mark.filterwarnings("default::placeto.problem.graph.uncounted.UncountedWarning")
def test_ops_of_other_domains_in_onnx_files_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    onnx = pytest.importorskip("onnx")
    infos = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [8, 8]) for name in "xy"]
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("Mine", ["x"], ["y"], domain="own")], "g", infos[:1], infos[1:]
    )
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("own", 1)]), tmp_path / "net.onnx")
    assert run("place", tmp_path / "net.onnx", "--cluster", "2xv100", "--placer", "single") == 0
    assert "net.onnx: there is no formula for the FLOPs of onnx.own.Mine (1 op)" in capsys.readouterr().err


def test_computing_ops_without_a_formula_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "exponential.py"
    file.write_text(
        "import torch\n"
        "class Exponential(torch.nn.Linear):\n"
        "    def forward(self, x):\n"
        "        return super().forward(torch.linalg.matrix_exp(x))\n"
        "def made():\n"
        "    return Exponential(4, 4), [torch.randn(4, 4)]\n"
    )
    assert run("capture", f"{file}:made", "-o", tmp_path / "g.json", "--inference") == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("uncounted")]
    assert "no formula for the FLOPs of aten.linalg_matrix_exp (1 op)" in line
