"""What is left of an evaluation that is interrupted or killed while its workers are at work."""

import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from placeto.evaluation.comparison import Row, load_rows
from placeto.problem.graph import ComputationGraph, save_graph
from tests.command_line import run

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks for processes in /proc"),
]
PLACERS = "random=random@2,slow=random@100000"
"""The second takes seconds on each graph."""


@pytest.fixture
def command(tmp_path: Path) -> list[str]:
    for name in "abcdefgh":
        ops = [{"name": f"op{i}", "time_us": {"*": 10.0}, "outputs": [8]} for i in range(9)]
        save_graph(ComputationGraph.from_ops(name, ops), tmp_path / f"{name}.json")
    files = [f"{name}.json" for name in "abcdefgh"]
    options = ["--cluster", "2xv100", "--placers", PLACERS, "--processes", "2", "-o", "table.json"]
    return [sys.executable, "-m", "placeto", "evaluate", *files, *options]


def started(command: list[str], folder: Path) -> subprocess.Popen[bytes]:
    """The command in a group of its own, once it has saved some rows."""
    quiet, default = subprocess.DEVNULL, partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # a shell's & ignores it
    process = subprocess.Popen(
        command, cwd=folder, start_new_session=True, stdout=quiet, stderr=subprocess.PIPE, preexec_fn=default
    )
    deadline = time.monotonic() + 60.0
    while not (folder / "table.json").exists():
        assert process.poll() is None, "ended before it was interrupted"
        assert time.monotonic() < deadline, "saved nothing"
        time.sleep(0.05)
    return process


def members(group: int) -> list[int]:
    """Processes of a group."""
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = status.read_text().rpartition(") ")[2].split()
        except OSError:
            continue
        if int(fields[2]) == group and fields[0] != "Z":
            found.append(int(status.parent.name))
    return found


def all_end(group: int) -> bool:
    """Whether the processes of a group all end within a few seconds."""
    deadline = time.monotonic() + 20.0
    while members(group) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not members(group)


def kept(group: int, folder: Path) -> list[Row]:
    """Some of the rows, in a valid file, of processes that are gone."""
    assert all_end(group), "workers outlive their parent"
    rows = load_rows(folder / "table.json")
    assert 0 < len(rows) < 16
    assert all(row["simulations"] in (2, 100_000) for row in rows)
    return rows


def hidden(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if path.name.startswith(".")]


def test_killed_it_leaves_a_valid_file_and_no_process(command: list[str], tmp_path: Path) -> None:
    process = started(command, tmp_path)
    process.kill()
    process.communicate()
    kept(process.pid, tmp_path)


def test_ctrl_c_ends_it_at_once_and_keeps_what_is_done(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = started(command, tmp_path)
    os.killpg(process.pid, signal.SIGINT)
    _, messages = process.communicate(timeout=20)
    assert process.returncode == 130, messages.decode()
    assert messages.decode().endswith("interrupted\n")
    assert "Traceback" not in messages.decode()
    before = kept(process.pid, tmp_path)
    assert hidden(tmp_path) == []
    monkeypatch.chdir(tmp_path)
    assert run(*command[3:], "--placers", PLACERS.replace("100000", "20"), "--processes", "1") == 0  # the last counts
    rows = load_rows(tmp_path / "table.json")
    assert len(rows) == 16
    assert all(row in rows for row in before if row["placer"] == "random"), "made again though they were there"


def test_a_signal_to_it_alone_ends_its_workers_too(command: list[str], tmp_path: Path) -> None:
    process = started([*command, "--placers", "random=random@2,slow=random@50000000"], tmp_path)
    process.send_signal(signal.SIGTERM)
    _, messages = process.communicate(timeout=20)
    assert process.returncode == 143
    assert messages.decode().endswith("ended by SIGTERM\n")
    assert not {"Traceback", "leaked"} & set(messages.decode().split())
    kept(process.pid, tmp_path)
    assert hidden(tmp_path) == []


def test_a_worker_that_is_killed_is_told_of(command: list[str], tmp_path: Path) -> None:
    process = started(command, tmp_path)
    workers = [pid for pid in members(process.pid) if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    os.kill(workers[0], signal.SIGKILL)
    _, messages = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "error: a worker process was killed" in messages.decode().splitlines()[-1]
    kept(process.pid, tmp_path)
