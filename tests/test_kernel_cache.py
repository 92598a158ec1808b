"""What is read from files is what would be compiled; what can't be read or written is compiled again."""

import errno
import os
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
import pytest

from placeto.plumbing.kernel_cache import NotKeptWarning, _tell, digest

SIZES = """
from typing import NamedTuple
SIZES = {"part": 2}
class Pair(NamedTuple):
    size: float
def weight(x):
    return x
"""
PARTS = """
from sizes import SIZES, Pair, weight
from placeto.plumbing.compiling import compiled
SIZE = SIZES["part"]
@compiled(inner=True)
def part(x):
    return x / Pair(SIZE).size
"""
SOURCE = """
import parts
from placeto.plumbing.compiling import compiled
@compiled()
def half(x):
    return parts.part(x)
def unread():
    return weight(1)
"""
PROGRAM = "import toy; assert toy.half(3) == 1.5, toy.half(3); print(*toy.half.stats.cache_misses.values())"


@pytest.fixture
def half(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Any]:
    """A kernel, made anew as by each process; it takes in what two other files define."""
    _tell.cache_clear()
    monkeypatch.syspath_prepend(str(tmp_path))
    for name, text in {"sizes": SIZES, "parts": PARTS, "toy": SOURCE}.items():
        (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def anew() -> Any:
        for name in ("sizes", "parts"):
            sys.modules.pop(name, None)
        return runpy.run_path(str(tmp_path / "toy.py"))["half"]

    return anew


def compiles(kernel: Any, expected: float = 1.5) -> bool:
    """Whether a kernel that halves is compiled, rather than read."""
    assert kernel(3) == expected
    return bool(kernel.stats.cache_misses)


def files(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*half-*.nbc"))


DAMAGE = {
    "empty": lambda content: b"",
    "cut short": lambda content: content[: len(content) // 2],
    "zeros at the end": lambda content: content[:-512] + bytes(min(512, len(content))),
    "one bit": lambda content: content[:-9] + bytes([content[-9] ^ 1]) + content[-8:],
    "other text": lambda content: b"<html>not found</html>" * 10,
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_file_is_compiled_again(
    tmp_path: Path, half: Callable[[], Any], damage: Callable[[bytes], bytes]
) -> None:
    assert compiles(half())
    assert not compiles(half())
    (file,) = files(tmp_path)
    file.write_bytes(damage(file.read_bytes()))
    assert compiles(half())
    assert not compiles(half())


def test_a_folder_in_place_of_a_file_is_no_error(tmp_path: Path, half: Callable[[], Any]) -> None:
    assert compiles(half())
    (file,) = files(tmp_path)
    file.unlink()
    file.mkdir()
    with pytest.warns(NotKeptWarning, match="is not kept"):
        assert compiles(half())


@pytest.mark.parametrize("of_a_user", [False, True], ids=["beside the source", "in a folder of the user"])
def test_what_takes_in_something_else_than_before_is_compiled_again(
    tmp_path: Path, half: Callable[[], Any], of_a_user: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after an upgrade: the kernel's own file is as before, which is all that numba compares."""
    if of_a_user:
        monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path / "of_a_user"))
    assert compiles(half())
    assert files(tmp_path / "of_a_user") or not of_a_user

    def edit(name: str, old: str, new: str) -> None:
        path = tmp_path / f"{name}.py"
        path.write_text(path.read_text().replace(old, new))

    edit("sizes", "return x", "return 2 * x")
    edit("toy", "weight(1)", "weight(2)")
    assert not compiles(half()), "no kernel takes this in"
    edit("sizes", "2}", "4}")
    before = half()
    assert compiles(before, 0.75)
    edit("parts", "return x /", "return 2 * x /")
    assert compiles(half())
    assert not compiles(half())
    edit("parts", "Pair(SIZE)", "Pair(2 * SIZE)")
    edit("sizes", "4}", "2}")
    edit("parts", "return 2 * x /", "return 2 * x +")
    assert compiles(half(), 10.0)
    assert len(files(tmp_path)) == 1, "what is outdated is replaced"


def test_data_of_other_arguments_is_not_taken_for_that_of_these(tmp_path: Path, half: Callable[[], Any]) -> None:
    kernel = half()
    assert (kernel(3), kernel(5.0)) == (1.5, 2.5)
    one, other = files(tmp_path)
    contents = one.read_bytes(), other.read_bytes()
    one.write_bytes(contents[1])
    other.write_bytes(contents[0])
    kernel = half()
    assert (kernel(3), kernel(5.0)) == (1.5, 2.5)
    assert sum(kernel.stats.cache_misses.values()) == 2


def test_a_full_disk_is_told_and_no_error(
    tmp_path: Path, half: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, content: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device", path)

    first, second = half(), half()
    with monkeypatch.context() as patched:
        patched.setattr(Path, "write_bytes", full)
        with pytest.warns(NotKeptWarning, match="No space left on device; set NUMBA_CACHE_DIR to a folder with room"):
            assert compiles(first)
        assert compiles(second), "without a second warning"
    assert files(tmp_path) == []


def test_where_no_folder_can_be_written_kernels_are_compiled_each_time(
    half: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As for a package and a home that can't be written."""
    monkeypatch.setattr(numba.core.caching.CacheImpl, "_locator_classes", [])
    kernel = half()
    with pytest.warns(NotKeptWarning, match="can be written; set NUMBA_CACHE_DIR"):
        assert kernel(3) == 1.5


def test_equal_constants_count_one_by_one() -> None:
    """If the second of two equal constants becomes equal to the third, the set of constants is the same as before."""

    def digest_of(values: tuple[int, int, int]) -> str:
        names: dict[str, Any] = {"__name__": "constants", **dict(zip("ABC", values, strict=True))}
        exec("def total(x):\n    return x + A + 10 * B + 100 * C", names)
        return digest(numba.njit(names["total"]))

    constants = (2, 2, 3), (2, 3, 3), (2, 3, 2), (1, 23, 4), (12, 3, 4)
    assert len(set(map(digest_of, constants))) == len(constants)
    assert digest_of(constants[0]) == digest_of(constants[0])


@pytest.mark.slow
def test_processes_compile_at_the_same_time_and_the_next_ones_read(tmp_path: Path, half: Callable[[], Any]) -> None:
    """In each process sets, such as those of names of options, are in another order."""
    path = os.pathsep.join([str(tmp_path), str(Path(__file__).parents[1])])
    command, environment = [sys.executable, "-c", PROGRAM], os.environ | {"PYTHONPATH": path}

    def run(seed: int) -> subprocess.Popen[str]:
        return subprocess.Popen(
            command, env=environment | {"PYTHONHASHSEED": str(seed)}, stdout=subprocess.PIPE, text=True
        )

    both = [run(seed) for seed in range(2)]
    compiled = [process.communicate()[0].split() for process in both]
    assert ["1"] in compiled
    assert all(missed in (["1"], []) for missed in compiled)  # [] if the other process was done before
    assert run(2).communicate()[0].split() == []


def test_a_function_that_has_moved_to_another_module_is_another() -> None:
    """The file of a kernel names the modules of what it takes in."""
    moved = type(compiles)(compiles.__code__, globals())
    moved.__module__ = "elsewhere"
    assert digest(compiles) != digest(moved)
