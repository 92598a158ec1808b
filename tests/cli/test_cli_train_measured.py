"""Training by measured step times, on the command line."""

from pathlib import Path

import pytest

from placeto.training.checkpoint import load_checkpoint
from tests.command_line import run

FACTORY = """
import torch
from torch import nn


def chain(width=16):
    return nn.Sequential(nn.Linear(width, width), nn.Linear(width, width)), [torch.randn(8, width)], lambda y: y.sum()
"""


@pytest.fixture
def factory(tmp_path: Path) -> str:
    (tmp_path / "model.py").write_text(FACTORY)
    return f"{tmp_path / 'model.py'}:chain"


@pytest.mark.parametrize("placer", ["seq2seq", "placeto-paper"])
def test_rewards_are_measured_and_it_goes_on(
    tmp_path: Path, factory: str, placer: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    on = ("--reward", "measured", "--devices", "cpu:0,cpu:1", "--placer", placer, "--out", out)
    few = ("--learning.samples", 3) if placer == "seq2seq" else ("--learning.episodes", 2)
    assert run("train", factory, *on, *few, "--iterations", 1) == 0
    before = load_checkpoint(out)["simulations"]
    assert "us measured," in capsys.readouterr().out
    assert run("train", factory, *on, *few, "--iterations", 2, "--resume") == 0
    assert load_checkpoint(out)["simulations"] > before
