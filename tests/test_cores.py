import os
import threading
from pathlib import Path

import pytest

from placeto.plumbing.cores import cores, pin
from tests.command_line import run


def test_cores_are_those_of_this_process() -> None:
    assert cores() == sorted(os.sched_getaffinity(0))
    pinned: list[list[int]] = []

    def work() -> None:
        pin(cores()[-1])
        pinned.append(cores())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert pinned == [cores()[-1:]]


def test_evaluate_works_where_the_system_does_not_say_which_cores(
    graph_file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on macOS, which has neither call."""
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.delattr(os, "sched_setaffinity")
    assert cores() == list(range(os.cpu_count() or 1))
    pin(0)
    table = tmp_path / "table.json"
    assert run("evaluate", graph_file, "--cluster", "2xv100", "--placers", "etf", "-o", str(table)) == 0
    assert table.is_file()
