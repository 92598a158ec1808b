"""`placeto profile`."""

from pathlib import Path

import pytest
import torch
from torch import nn

from placeto.problem.cluster import load_cluster
from placeto.problem.costs.profiled import load_profiled
from tests.command_line import run


def words(size: int = 16) -> tuple[nn.Module, list[torch.Tensor], object, list[torch.Tensor]]:
    """A classifier of words; nobody says which."""
    module = nn.Sequential(nn.Embedding(10, size), nn.Flatten(), nn.Linear(3 * size, 5))
    inputs, targets = torch.empty(4, 3, dtype=torch.int64), torch.empty(4, dtype=torch.int64)
    return module, [inputs], nn.functional.cross_entropy, [targets]


FACTORY = "tests.cli.test_cli_profile:words"


def test_costs_and_cluster_are_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, cluster = tmp_path / "costs.json", tmp_path / "here.json"
    assert run("profile", FACTORY, f"{FACTORY}(size=8)", "-o", out, "--seconds", "0.1", "--cluster-out", cluster) == 0
    printed = capsys.readouterr().out
    assert "words(size=8) on cpu: " in printed
    assert "predicted" in printed
    costs = load_profiled(out)
    assert len([op for op in costs.ops if op.type == "aten.embedding"]) == 2
    assert load_cluster(cluster).device_names == ("cpu:0",)
    assert load_cluster(cluster).name == "here"


def test_inference_has_no_backward(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "costs.json"
    assert run("profile", FACTORY, "-o", out, "--seconds", "0.1", "--inference", "--set", "size=4") == 0
    assert {op.type for op in load_profiled(out).ops} == {"aten.embedding", "aten.addmm"}


def test_ops_are_measured_in_the_precision_of_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "costs.json"
    words = ("--precision", "bf16", "--inference", "--set", "size=4")
    assert run("profile", FACTORY, "-o", out, "--seconds", "0.1", *words) == 0
    (product,) = (op for op in load_profiled(out).ops if op.type == "aten.addmm")
    assert "bf16" in product.signature
