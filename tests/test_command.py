import sys
from pathlib import Path

import pytest

from experiments.command import command
from experiments.zero_shot import ZeroShotConfig, main


def test_a_users_mistake_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["zero_shot", "--families", "nosuch", "--out", str(tmp_path)])
    with pytest.raises(SystemExit) as stop:
        command(main, ZeroShotConfig, "zero_shot", None)
    assert stop.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith("error: unknown graph family 'nosuch'; known: cifar10")
    assert error.count("\n") == 1


def test_help_names_the_module(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["x", "--help"])
    with pytest.raises(SystemExit) as stop:
        command(main, ZeroShotConfig, "zero_shot", "What it does.")
    assert stop.value.code == 0
    printed = capsys.readouterr().out
    assert "python -m experiments.zero_shot" in printed
    assert "What it does." in printed
