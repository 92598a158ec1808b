"""Packages that add to Placeto, made up for a test."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from placeto import placers
from placeto.environment import rewards
from placeto.placers import families
from placeto.policies import external

REWARDS = rewards._others, rewards.find_reward, rewards.find_placement_reward


def forget() -> None:
    """What was found out of installed packages."""
    for known in (external._others, external._load, *REWARDS, families, placers._others, placers._load):
        known.cache_clear()


@pytest.fixture
def adds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """A function that installs a package: entry points of a group, and its module `ours`."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def add(group: str, points: str, code: str = "", package: str = "ours") -> None:
        (tmp_path / f"{package}.py").write_text(code)
        folder = tmp_path / f"{package}-1.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1\n")
        (folder / "entry_points.txt").write_text(f"[{group}]\n{points}\n")
        sys.modules.pop(package, None)
        forget()

    yield add
    forget()
    sys.modules.pop("ours", None)
