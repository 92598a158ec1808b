"""Running placements, and tuning them, on the command line."""

import json
from pathlib import Path

import pytest

from placeto.formats.placement import load_placement
from tests.command_line import fails, run

MODEL = """
import torch
from torch import nn

class Towers(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.towers = nn.ModuleList(nn.Sequential(nn.Linear(width, width), nn.ReLU()) for _ in range(2))

    def forward(self, x):
        return sum(tower(x) for tower in self.towers)

def towers(width=64):
    torch.manual_seed(0)
    return Towers(width), [torch.randn(16, width)], lambda y: y.square().mean()

def half():
    return Towers(512).bfloat16(), [torch.randn(16, 512)], lambda y: y.square().mean()

def by_name():
    class Loss(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 4)
        def forward(self, *, x):
            return {"loss": self.layer(x).sum()}
    return Loss(), {"x": torch.randn(2, 4)}
"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "mine.py").write_text(MODEL)
    return tmp_path / "mine.py"


def test_tune_then_run(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    placement, on = tmp_path / "placement.json", ("--devices", "cpu:0,cpu:1")
    assert run("tune", f"{model}:towers", *on, "--minutes", 0.02, "-o", placement, "--logs", tmp_path / "logs") == 0
    output = capsys.readouterr().out
    rows = [line.split() for line in output.splitlines() if line.split()[0].isdigit()]
    assert {"one"} < {row[1] for row in rows}, "one device is among them"
    assert float(output.splitlines()[-1].split(": ")[1].split()[0]) <= 1.0
    assert list((tmp_path / "logs").glob("events*"))
    assert load_placement(placement).order is not None
    assert run("run", f"{model}:towers", "--placement", placement, *on, "--steps", 3) == 0
    output = capsys.readouterr().out
    assert "in the median of 3" in output
    assert "loss         0." in output
    for name in ("cpu:0", "cpu:1"):
        assert f"{name}        " in output
    assert "simulated" in output
    document = json.loads(placement.read_text())
    del document["order"]
    placement.write_text(json.dumps(document))
    says = "the placement has no order"
    assert says in fails(capsys, "run", f"{model}:towers", "--placement", placement, "--devices", "cpu:0,cpu:1")


def test_a_placement_runs_on_the_devices_that_it_uses(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    placement, graph = tmp_path / "placement.json", tmp_path / "mine.json"
    assert run("capture", f"{model}:towers", "-o", graph) == 0
    assert run("place", graph, "--cluster", "4xv100", "--placer", "single", "-o", placement) == 0
    document = json.loads(placement.read_text())
    one, other = document["placement"], list(document["peak_memory"])[2]
    moved = [op for op in one if "towers.1" in op]
    document["order"] = {
        first: [op for op in ops if op not in moved] for first, ops in document["order"].items() if ops
    } | {other: [op for ops in document["order"].values() for op in ops if op in moved]}
    document["placement"] |= dict.fromkeys(moved, other)
    placement.write_text(json.dumps(document))
    capsys.readouterr()
    assert run("run", f"{model}:towers", "--placement", placement, "--devices", "cpu:0,cpu:1", "--steps", 2) == 0
    assert "cpu:1   " in capsys.readouterr().out
    says = fails(capsys, "run", f"{model}:towers", "--placement", placement, "--devices", "cpu:0")
    assert "the placement is for 4 devices, gpu:0, gpu:1, gpu:2, gpu:3, and uses 2 of them; 1 are given" in says


def test_a_step_in_16_bits_is_tuned_and_run(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    step, on, peaks = f"{model}:half", ("--devices", "cpu:0,cpu:1"), {}
    for optimizer in ((), ("--master-weights",)):
        placement = tmp_path / f"placement{len(optimizer)}.json"
        assert run("tune", step, *on, "--minutes", 0.01, "--precision", "bf16", *optimizer, "-o", placement) == 0
        capsys.readouterr()
        assert run("run", step, "--placement", placement, *on, "--steps", 2, "--precision", "bf16", *optimizer) == 0
        assert "loss" in capsys.readouterr().out
        peaks[optimizer] = sum(load_placement(placement).peak_memory.values())
    assert peaks[("--master-weights",)] > peaks[()]


def test_inputs_by_name(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    graph, placement = tmp_path / "graph.json", tmp_path / "placement.json"
    assert run("capture", f"{model}:by_name", "-o", graph) == 0
    assert run("place", graph, "--cluster", "2xcpu-core", "--placer", "roundrobin", "-o", placement) == 0
    assert run("run", f"{model}:by_name", "--placement", placement, "--devices", "cpu:0,cpu:1", "--steps", 2) == 0
    assert "loss" in capsys.readouterr().out
