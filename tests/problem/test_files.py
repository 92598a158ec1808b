import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from placeto.errors import PlacetoError
from placeto.problem.files import atomic_write, locked, write_text


@contextmanager
def limited(size: int) -> Iterator[None]:
    """Within it no file of this process gets larger."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@contextmanager
def held(path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that has locked a path."""
    code = f"from placeto.problem.files import locked\nwith locked({str(path)!r}): print('locked', flush=True); input()"
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "locked\n"
    try:
        yield process
    finally:
        process.communicate("\n" if process.poll() is None else None)


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "table.json.gz"
    with atomic_write(path) as temporary:
        assert (temporary.parent, temporary.suffix) == (tmp_path, ".gz")
        temporary.write_text("old")
        assert not path.exists()
    with pytest.raises(UnicodeEncodeError):
        write_text("half \ud800", path)
    assert path.read_text() == "old"
    write_text("new", path)
    assert path.read_text() == "new"
    assert os.listdir(tmp_path) == ["table.json.gz"]


def test_a_full_disk_leaves_the_old_file_and_names_it(tmp_path: Path) -> None:
    path = tmp_path / "table.md"
    write_text("old", path)
    with limited(1000), pytest.raises(OSError, match="File too large") as error:
        write_text("x" * 2000, path)
    assert error.value.filename == str(path)
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["table.md"]
    with pytest.raises(FileNotFoundError) as missing:
        write_text("", tmp_path / "nowhere" / "table.md")
    assert missing.value.filename == str(tmp_path / "nowhere" / "table.md")
    with pytest.raises(OSError, match="No space left") as device:
        write_text("x", "/dev/full")
    assert device.value.filename == "/dev/full"


def test_links_and_devices_stay_what_they_are(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    real, link, pipe = tmp_path / "folder" / "real", tmp_path / "link", tmp_path / "pipe"
    real.write_text("old")
    link.symlink_to(real)
    write_text("new", link)
    assert link.is_symlink()
    assert real.read_text() == "new"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_text("through", pipe)
    assert os.read(reader, 99) == b"through"
    os.close(reader)
    assert pipe.is_fifo()


def test_what_killed_processes_left_is_removed(tmp_path: Path) -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    running = f".checkpoint.pt.{os.getppid()}"
    others = [running, ".checkpoint.pt.old", f".other.pt.{gone.pid}", f"checkpoint.pt.{gone.pid}"]
    for name in (*others, f".checkpoint.pt.{gone.pid}", f".checkpoint.pt.{gone.pid}.pt"):
        (tmp_path / name).touch()
    write_text("", tmp_path / "checkpoint.pt")
    assert set(os.listdir(tmp_path)) == {"checkpoint.pt", *others}


def test_long_names_are_no_trouble(tmp_path: Path) -> None:
    path = tmp_path / ("x" * 250 + ".json")
    with locked(path):
        write_text("new", path)
    assert path.read_text() == "new"


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_a_second_process_is_refused_until_the_first_ends(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "place"
    if kind == "folder":
        path.mkdir()
    with held(path) as process:
        says = rf"place: process {process.pid} on \S+ is writing to it; wait until that ends"
        with pytest.raises(PlacetoError, match=says), locked(path):
            pytest.fail("both have it")
    with locked(path), locked(path):  # once more by the same process
        pass
    assert not [file for file in tmp_path.rglob("*") if file.name.endswith(".lock")]


def test_a_killed_process_holds_nothing(tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    with held(path) as process:
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert (tmp_path / ".table.json.lock").exists()
        with locked(path):
            pass
    assert os.listdir(tmp_path) == []
