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

SMALL_FAMILY = """
from random import Random
from placeto.problem.graph import ComputationGraph

class Family:
    name, description, splits = "small", "random graphs of 12 ops", {"train": 2, "validation": 1, "test": 2}

    def load(self, split, index):
        random, ops = Random(f"{split} {index}"), []
        for i in range(12):
            inputs = [[f"op{random.randrange(max(i - 3, 0), i)}", 0]] if i else []
            time = {"*": random.uniform(100.0, 900.0)}
            ops.append({"name": f"op{i}", "type": "mm", "inputs": inputs, "outputs": [1000], "time_us": time})
        return ComputationGraph.from_ops(f"{split}{index}", ops)

FAMILIES = {"small": Family()}
"""


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


@pytest.fixture
def small_family(adds: Callable[..., None]) -> None:
    """A package with the family `small` is installed."""
    adds("placeto.families", "ours = ours:FAMILIES", SMALL_FAMILY)
