"""`placeto capture`."""

from pathlib import Path

import pytest
import torch
from torch import nn

from placeto.graph import load_graph
from tests.command_line import fails, run


def model() -> tuple[nn.Module, list[torch.Tensor], object]:
    return nn.Linear(8, 4), [torch.empty(2, 8)], lambda output: output.sum()


@pytest.mark.parametrize(("options", "mode"), [((), "training"), (("--inference",), "inference")])
def test_capture(options: tuple[str, ...], mode: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "linear.json"
    assert run("capture", "tests.test_cli_capture:model", "-o", out, *options) == 0
    assert mode in capsys.readouterr().out
    graph = load_graph(out)
    assert (graph.name, graph.mode) == ("linear", mode)
    assert "aten.addmm" in graph.op_types


def text() -> str:
    return "neither a module nor inputs"


@pytest.mark.parametrize(
    ("factory", "says"),
    [
        ("model", "must be package.module:function"),
        ("no.such:model", "there is no module 'no'"),
        ("tests.test_cli_capture:nothing", "has no function 'nothing'"),
        ("tests.command_line:OPS", "is no function"),
        ("tests.test_cli_capture:text", "must return (module, inputs)"),
    ],
)
def test_bad_factories(factory: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert says in fails(capsys, "capture", factory, "-o", tmp_path / "graph.json")
