"""What is read from files is what would be compiled; what can't be read or written is compiled again."""

import errno
import runpy
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numba
import pytest

from placeto import compiling
from placeto.kernel_cache import NotKeptWarning, _SealedFiles, _tell

SOURCE = "from placeto.compiling import compiled\n@compiled()\ndef half(x):\n    return x / 2\n"


@pytest.fixture
def half(tmp_path: Path) -> Callable[[], Any]:
    """A kernel, made anew as by each process."""
    _tell.cache_clear()
    file = tmp_path / "toy.py"
    file.write_text(SOURCE)
    return lambda: runpy.run_path(str(file))["half"]


def compiles(kernel: Any) -> bool:
    """Whether a kernel that halves is compiled, rather than read."""
    assert kernel(3) == 1.5
    return bool(kernel.stats.cache_misses)


def files(folder: Path, kind: str) -> list[Path]:
    return sorted(folder.rglob(f"*half-*.{kind}"))


DAMAGE = {
    "empty": lambda content: b"",
    "cut short": lambda content: content[: len(content) // 2],
    "zeros at the end": lambda content: content[:-512] + bytes(min(512, len(content))),
    "one bit": lambda content: content[:-9] + bytes([content[-9] ^ 1]) + content[-8:],
    "other text": lambda content: b"<html>not found</html>" * 10,
}


@pytest.mark.parametrize("kind", ["nbi", "nbc"])
@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_file_is_compiled_again(
    tmp_path: Path, half: Callable[[], Any], kind: str, damage: Callable[[bytes], bytes]
) -> None:
    assert compiles(half())
    assert not compiles(half())
    (file,) = files(tmp_path, kind)
    file.write_bytes(damage(file.read_bytes()))
    assert compiles(half())
    assert not compiles(half())


def test_a_folder_in_place_of_a_file_is_no_error(tmp_path: Path, half: Callable[[], Any]) -> None:
    assert compiles(half())
    (index,) = files(tmp_path, "nbi")
    index.unlink()
    index.mkdir()
    with pytest.warns(NotKeptWarning, match="is not kept"):
        assert compiles(half())


@pytest.mark.parametrize("of_a_user", [False, True], ids=["beside the source", "in a folder of the user"])
def test_what_was_compiled_from_other_kernels_is_compiled_again(
    tmp_path: Path, half: Callable[[], Any], of_a_user: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after an upgrade of a kernel that this one takes in: its own file is as before."""
    if of_a_user:
        monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path / "of_a_user"))
    assert compiles(half())
    assert not compiles(half())
    assert files(tmp_path / "of_a_user", "nbc") or not of_a_user
    monkeypatch.setattr(compiling, "_ORIGIN", "upgraded")
    assert compiles(half())
    assert not compiles(half())


def test_a_process_of_before_an_upgrade_leaves_nothing_that_later_ones_read(
    half: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = half()
    monkeypatch.setattr(compiling, "_ORIGIN", "upgraded")
    assert compiles(before)
    assert compiles(half())


def test_data_of_other_arguments_is_not_taken_for_that_of_these(tmp_path: Path, half: Callable[[], Any]) -> None:
    """Two processes that begin without an index give one name to the data of different types of arguments."""
    kernel = half()
    assert (kernel(3), kernel(5.0)) == (1.5, 2.5)
    one, other = files(tmp_path, "nbc")
    contents = one.read_bytes(), other.read_bytes()
    one.write_bytes(contents[1])
    other.write_bytes(contents[0])
    kernel = half()
    assert (kernel(3), kernel(5.0)) == (1.5, 2.5)
    assert sum(kernel.stats.cache_misses.values()) == 2


def test_a_full_disk_is_told_and_no_error(half: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def full(files: _SealedFiles, path: str) -> AbstractContextManager[Any]:
        raise OSError(errno.ENOSPC, "No space left on device", path)

    monkeypatch.setattr(_SealedFiles, "_open_for_write", full)
    with pytest.warns(NotKeptWarning, match="No space left on device; set NUMBA_CACHE_DIR to a folder with room"):
        assert compiles(half())
    assert compiles(half()), "without a second warning"


def test_where_no_folder_can_be_written_kernels_are_compiled_each_time(
    half: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As for a package and a home that can't be written."""
    monkeypatch.setattr(numba.config, "CACHE_LOCATOR_CLASSES", "ZipCacheLocator")
    kernel = half()
    with pytest.warns(NotKeptWarning, match="can be written; set NUMBA_CACHE_DIR"):
        assert kernel(3) == 1.5
