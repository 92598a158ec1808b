"""Plan files, as `placeto plan -o` writes them and other commands read them."""

import json
from pathlib import Path

import pytest

from placeto.formats.placement import PlacementError, load_placement
from placeto.formats.plan import load_plan, save_plan
from placeto.problem.cluster import load_cluster
from tests.command_line import NET, fails, run

MODEL = NET.replace("torch.randn(16, 512)", "torch.randn(4096, 512)")
ON = ("--cluster", "2xcpu-core")


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("net.py").write_text(MODEL)
    plan = ("--micro-batches", "4", "--runnable-by", "torch", "--headroom", "1MB", "-o", "plan.json")
    assert run("plan", "net.py:net", "--cluster", "2xcpu-core", *plan) == 0
    capsys.readouterr()
    return Path("plan.json")


def test_a_plan_is_read_as_it_was_written(path: Path) -> None:
    plan = load_plan(path)
    assert plan is not None
    assert plan.cluster_hash == load_cluster("2xcpu-core").hash
    assert plan.micro_batches == 4
    assert plan.fits
    assert sum(plan.memory.values()) <= plan.room
    assert load_placement(path) == plan.placement
    save_plan(plan, "again.json.gz")
    assert load_plan("again.json.gz") == plan
    with pytest.raises(PlacementError, match=r"must end in \.json"):
        save_plan(plan, "plan.txt")


def test_commands_take_the_micro_batches_of_a_plan(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("simulate", "net.py:net", "--placement", path, *ON) == 0
    assert run("report", "net.py:net", "--placement", path, *ON, "-o", "page.html", "--against", "none") == 0
    assert run("export", "net.py:net", "--placement", path, *ON, "--format", "trace", "-o", "trace.json") == 0
    given = ("--micro-batches", "2")
    says = "--micro-batches 2: plan.json is a plan with 4 micro-batches: leave the option out"
    capsys.readouterr()
    assert says in fails(capsys, "simulate", "net.py:net", "--placement", path, *ON, *given)
    assert says in fails(capsys, "run", "net.py:net", "--plan", path, "--devices", "cpu:0,cpu:1", *given)


def test_a_plan_for_something_else_is_refused(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("simulate", "net.py:net", "--placement", path)
    assert "plan.json: the plan is for another cluster" in fails(capsys, *words, "--cluster", "2xv100")
    assert "is for another graph" in fails(capsys, *words, *ON, "--set", "layers=5")
    said = json.loads(path.read_text())
    for field, value, told in (
        ("step_us", "long", "plan.json: step_us must be"),
        ("micro_batches", 0, "micro_batches must be an integer from 1"),
        ("kinds", 1, "kinds"),
        ("placement", {}, "plan.json: "),
    ):
        Path("other.json").write_text(json.dumps(said | {field: value}))
        assert told.replace("plan.json", "other.json") in fails(capsys, *words[:3], "other.json", *ON)
