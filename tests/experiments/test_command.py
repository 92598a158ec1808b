import platform
import re
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path

import pytest

from experiments.command import SIMULATED, command, commit
from experiments.links import Links, main


def test_a_users_mistake_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = tmp_path / "results.md"
    kept.write_text("of before")
    results = ["--results", str(kept)]
    monkeypatch.setattr(sys, "argv", ["x", "--graphs", "nosuch:test:0", *results])
    with pytest.raises(SystemExit) as stop:
        command(main, Links, "links", "What it does.")
    assert stop.value.code == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("error: unknown graph family 'nosuch'; known: cifar10")
    assert kept.read_text() == "of before"


def test_help_names_the_module(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["x", "--help"])
    with pytest.raises(SystemExit) as stop:
        command(main, Links, "links", "What it does.")
    assert stop.value.code == 0
    printed = capsys.readouterr().out
    assert "python -m experiments.links" in printed
    assert "What it does." in printed
    assert "--results" in printed


def test_what_is_printed_is_kept_below_question_command_and_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = tmp_path / "new folder" / "results.md"
    small = ["--graphs", "ptb:test:0", "--placers", "etf", "--results", str(kept)]
    monkeypatch.setattr(sys, "argv", ["x", *small])
    command(main, Links, "links", "What links\nare like.\n\nAnd more.")
    head, _, table = kept.read_text().partition(f"{SIMULATED}\n")
    took, _, table = table.partition("\n\n")
    assert re.fullmatch(r"This run took \d+ s\.", took)
    assert table == capsys.readouterr().out, "not as printed"
    assert "| ptb:test:0 | " in table
    assert head.startswith("# What links are like.\n\n    python -m experiments.links --graphs ptb:test:0 --placers")
    assert time.strftime("%F") in head
    for word in ("cores, ", "; commit ", f"Python {platform.python_version()}, torch {version('torch')}"):
        assert word in head


def test_code_that_differs_makes_a_tree_dirty_and_pages_and_results_do_not(tmp_path: Path) -> None:
    def git(*arguments: str) -> None:
        who = ["-c", "user.name=someone", "-c", "user.email=someone@example.org"]
        subprocess.run(["git", *who, *arguments], cwd=tmp_path, check=True, capture_output=True)

    assert commit(tmp_path) == "unknown"
    files = [tmp_path / name for name in ("code.py", "page.md", "docs/picture.png", "experiments/results/x.md")]
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("before")
    git("init", "-q")
    git("add", ".")
    git("commit", "-q", "-m", "first")
    for file in files[1:]:
        file.write_text("after")
    clean = commit(tmp_path)
    assert re.fullmatch("[0-9a-f]{7,}", clean)
    files[0].write_text("after")
    assert commit(tmp_path) == f"{clean}-dirty"
