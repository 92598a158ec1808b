"""The package has types for programs that use it: mypy checks one, with strict settings."""

import subprocess
import sys
import tomllib
from importlib.resources import files
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROGRAM = '''
# mypy: disallow-any-generics, disallow-subclassing-any, disallow-untyped-calls, disallow-untyped-decorators
# mypy: warn-return-any, strict-equality, extra-checks
import torch
from torch import nn

import placeto


def run(graph: placeto.ComputationGraph, cluster: placeto.Cluster) -> float:
    """What a user writes; all of it is right."""
    problem = placeto.PlacementProblem(graph, cluster)
    placer: placeto.Placer = placeto.load_placer("etf")
    result: placeto.PlacementResult = placer(problem, simulations=10)
    placeto.save_placement(result, "placement.json")
    reveal_type(placeto.simulate(problem, result.placement).makespan_us)
    reveal_type(result.devices())
    return result.makespan_us


model = nn.Linear(2, 2)
reveal_type(placeto.place(model, [torch.empty(1, 2)], cluster="4xv100"))
reveal_type(placeto.plan(model, [torch.empty(1, 2)], cluster="4xv100").best.step_us)
reveal_type(placeto.capture_inference(model, [torch.empty(1, 2)]))
placeto.load_cluster(3)
placeto.place(model, cluster="4xv100", simulations="many")
placeto.load_placer("etf").one_pass
'''
REVEALED = "float", "dict[str, str]", "PlacementResult", "float", "ComputationGraph"
WRONG = {"arg-type": 2, "attr-defined": 1}


def test_the_marker_of_types_is_part_of_both_packages() -> None:
    data = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]
    for package in ("placeto", "graphs"):
        assert files(package).joinpath("py.typed").is_file()
        assert "py.typed" in data[package]


def test_a_program_is_checked(tmp_path: Path) -> None:
    """With the settings and the cache of `make lint`: without the cache the check takes half a minute."""
    pytest.importorskip("mypy")
    (tmp_path / "program.py").write_text(PROGRAM)
    command = [sys.executable, "-m", "mypy", str(tmp_path / "program.py")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    lines = done.stdout.splitlines()
    revealed = [line.split('"')[1].rsplit(".", 1)[-1] for line in lines if "Revealed type" in line]
    assert revealed == list(REVEALED), done.stdout + done.stderr
    errors = [line for line in lines if " error: " in line]
    assert all(line.partition(":")[0].endswith("program.py") for line in errors), done.stdout
    assert {kind: sum(f"[{kind}]" in line for line in errors) for kind in WRONG} == WRONG, done.stdout
    assert len(errors) == sum(WRONG.values()), done.stdout
