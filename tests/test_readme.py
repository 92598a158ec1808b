"""What README.md tells the reader to type must exist."""

import re
import shlex
from importlib import import_module
from pathlib import Path

import pytest

from placeto import cli

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "README.md").read_text()


def commands() -> list[str]:
    """Lines of code blocks that call the ``placeto`` command."""
    blocks = "\n".join(re.findall(r"^```\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE)).replace("\\\n", " ")
    lines = [line.split("#")[0] for line in blocks.splitlines()]
    return [line.strip() for line in lines if line.startswith("placeto ")]


def test_there_are_commands() -> None:
    assert {command.split()[1] for command in commands()} >= {"train", "place", "evaluate", "simulate", "list"}


@pytest.mark.parametrize("command", commands())
def test_commands_parse(command: str) -> None:
    command = re.sub(r"(train .*)--checkpoint \S+", r"\1", command)  # it is opened while parsing, for its settings
    name, *arguments = shlex.split(command)[1:]
    cli.parse(import_module(f"placeto.cli.{name}"), arguments)


def test_files_exist() -> None:
    for path in re.findall(r"\]\(((?!http)[^)]+)\)", TEXT):
        assert (ROOT / path).exists(), path
    folder = ROOT
    for path in re.findall(r"`([\w/]+(?:\.py|/))`", TEXT):
        places = [folder / path, ROOT / "placeto" / path]
        assert any(place.exists() for place in places), path


def test_python_names_exist() -> None:
    import placeto

    for name in re.findall(r"\bplaceto\.(\w+)\(", TEXT):
        assert hasattr(placeto, name), name


def test_make_targets_exist() -> None:
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"make (demo|test|lint|bench|clean)", TEXT)) <= targets
