"""What README.md tells the reader to type works as it stands, in the order in which it stands there."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

import placeto
from tests.command_line import run

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "README.md").read_text()
SHORTER = {  # the same commands on fewer graphs, and for an iteration in place of minutes
    r"train --family cifar10": "train cifar10:train:1 --validation-graphs cifar10:validation:3",
    r"--minutes 10": "--iterations 1 --learning.annealed 0 --learning.labels 16",
    r"place (cifar10:test:3) --cluster 4xv100": r"place \1 --cluster 4xv100 --simulations 100",
    r"--count 4": "--count 1",
    r"--simulations 300 --seeds 2": "--simulations 30 --seeds 1 --processes 1",
}


def blocks(language: str) -> list[str]:
    fenced = re.findall(r"^```(\w*)\n(.*?)^```$", TEXT, re.DOTALL | re.MULTILINE)
    return [block for name, block in fenced if name == language]


def commands() -> list[str]:
    """Lines of code blocks that call a command, without comments; continued lines are joined."""
    text = "\n".join(blocks("")).replace("\\\n", " ")
    lines = [line.split("  #")[0].strip() for line in text.splitlines()]
    return [line for line in lines if line.split(" ")[0] in ("placeto", "tensorboard", "make", "pip")]


def test_python_runs_as_it_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    simulated, run = blocks("python")
    names: dict[str, Any] = {"__name__": "readme"}
    exec(compile(simulated, "README.md", "exec"), names)
    result = names["result"]
    assert isinstance(result, placeto.PlacementResult)
    assert set(result.devices().values()) == {"gpu:0", "gpu:1"}  # a tower each
    assert placeto.load_placement("placement.json").placement == result.devices()
    exec(compile(run, "README.md", "exec"), names)
    assert set(names["placed"].devices().values()) == {"cpu:0", "cpu:1"}
    assert names["model"](names["x"]).square().mean() < names["loss"]


def test_commands_run_in_their_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PLACETO_CACHE", str(tmp_path / "cache"))
    called = []
    for command in commands():
        for pattern, shorter in SHORTER.items():
            command = re.sub(pattern, shorter, command)
        name, *arguments = shlex.split(command)
        if name == "placeto":
            assert run(*arguments) == 0, capsys.readouterr().err
            called.append(arguments[0])
        elif name == "tensorboard":
            assert list(Path(arguments[-1]).glob("events.out.tfevents*"))
        elif name == "make":
            assert re.search(rf"^{arguments[0]}:", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert {"train", "place", "evaluate", "simulate", "list"} <= set(called)
    for made in ("placement.json", "gantt.png", "trace.json", "table.json", "table.md", "curve.png"):
        assert (tmp_path / made).stat().st_size > 100, made


def test_names_exist() -> None:
    for name in re.findall(r"\bplaceto\.(\w+)\(", TEXT):
        assert hasattr(placeto, name), name
