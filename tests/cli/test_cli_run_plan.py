"""A plan is run by torchrun in one command."""

import re
from pathlib import Path

import pytest

from tests.command_line import fails, run
from tests.formats.test_torch_pipeline import MODEL

STEP = ("net.py:net", "--micro-batches", "2")
RUN = ("run", *STEP, "--plan", "plan.json", "--devices", "cpu:0,cpu:1")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("net.py").write_text(MODEL)
    placer = ("--placer", "torch-pipeline")
    assert run("place", *STEP, "--cluster", "2xcpu-core", *placer, "-o", "plan.json") == 0
    capsys.readouterr()
    return tmp_path


def test_a_plan_trains_as_the_whole_model_does(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*RUN, "--check", "--steps", "1") == 0
    out = capsys.readouterr().out
    apart = [float(off) for off in re.findall(r"gradients, off by (\S+) at most", out)]
    assert len(apart) > 1
    assert max(apart) < 1e-6
    losses = re.findall(r"^step \d: loss (\S+), \S+ ms; whole model: loss (\S+)$", out, re.MULTILINE)
    assert len(losses) == 3
    assert all(float(one) == pytest.approx(float(other), rel=1e-4) for one, other in losses)
    assert re.search(r"^step +\S+ \w+ in the median of 1, spread \S+ \w+, simulated \S+ \w+$", out, re.MULTILINE)


def test_mistakes_are_told_in_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    one = ("run", *STEP, "--devices", "cpu:0")
    assert "--devices cpu:0: the plan runs on 2 devices, not on 1" in fails(capsys, *one, "--plan", "plan.json")
    assert "give one of --placement and --plan" in fails(capsys, *one)
    assert "give one of" in fails(capsys, *one, "--plan", "plan.json", "--placement", "plan.json")
    assert "--check: goes with --plan" in fails(capsys, *one, "--placement", "plan.json", "--check")
    assert "--cluster: goes with --plan" in fails(capsys, *one, "--placement", "plan.json", "--cluster", "2xv100")
    assert "--costs: goes with --plan" in fails(capsys, *one, "--placement", "plan.json", "--costs", "roofline")
    assert "2xv100" in fails(capsys, *RUN, "--cluster", "2xv100")
    other = ("run", "net.py:net", "--micro-batches", "4", *RUN[4:])
    assert "the placement is for another graph" in fails(capsys, *other)
    whole = ("run", "net.py:net", *RUN[4:])
    assert "the placement is for another graph" in fails(capsys, *whole)


def test_a_plan_without_micro_batches_is_no_pipeline(capsys: pytest.CaptureFixture[str]) -> None:
    whole = ("--micro-batches", "1")
    assert run("plan", "net.py:net", "--cluster", "2xcpu-core", *whole, "-o", "whole.json") == 0
    capsys.readouterr()
    message = fails(capsys, "run", "net.py:net", "--plan", "whole.json", "--devices", "cpu:0,cpu:1")
    assert re.search(
        r"whole\.json: its way is [\w ]+, which is no pipeline of micro-batches: run it with [\w ]+, or", message
    )
