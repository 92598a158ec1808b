"""Kernels depend on the files that they take something in from, and on no others."""

import os
import shutil
import time
from pathlib import Path

import pytest

import placeto
from placeto.kernel_files import digest_of_kernels, kernel_files

PACKAGE = Path(placeto.__file__).parent


def names(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in kernel_files(folder)}


@pytest.fixture
def toy(tmp_path: Path) -> Path:
    """A package with two kernels: what they take in, what they don't, and names that mislead."""
    files = {
        "__init__": "",
        "compiling": "compiled = print\n",
        "kernel": """
            from toy import more
            from toy.between import SIZE as LENGTH
            from toy.compiling import compiled
            from toy.python import drive, shadow

            @compiled(fastmath=True)
            def first(x: int) -> int:
                shadow = x
                return shadow + LENGTH

            @compiled()
            def second(state: more.State) -> int:
                return first(more.STEP)

            def around() -> int:
                return drive(second)
        """,
        "between": "from toy.constants import SIZE\n",
        "constants": "from toy.base import ONE\nSIZE = 2 * ONE\n",
        "base": "if True:\n    ONE = 1\n",
        "more": "from toy.unused import late\nclass State:\n    field: int\nSTEP = 3\ndef read():\n    return late()\n",
        "python": "def drive(kernel):\n    compiled = kernel\n    return compiled\nshadow = 5\n",
        "unused": "def late() -> int:\n    return 1\n",
    }
    folder = tmp_path / "toy"
    folder.mkdir()
    for name, text in files.items():
        lines = text.splitlines()
        (folder / f"{name}.py").write_text("\n".join(line.removeprefix(" " * 12) for line in lines) + "\n")
    return folder


def test_what_kernels_take_in_is_followed_across_files(toy: Path) -> None:
    assert names(toy) == {"compiling.py", "kernel.py", "constants.py", "base.py", "more.py"}


def test_policies_rewards_and_heuristics_have_no_say_but_kernels_and_their_constants_have(tmp_path: Path) -> None:
    folder = tmp_path / "placeto"
    shutil.copytree(PACKAGE, folder, ignore=shutil.ignore_patterns("__pycache__", "pretrained", "data"))

    def drops(*edited: str) -> bool:
        before = digest_of_kernels(folder)
        for name in edited:
            (folder / name).write_text((folder / name).read_text() + "\n# edited\n")
        return digest_of_kernels(folder) != before

    python = "policies/placeto.py", "policies/placeto_paper.py", "policies/guided_search.py", "policies/one_shot/gdp.py"
    assert not drops(*python, "environment/rewards.py", "heuristics/naive.py")
    assert drops("policies/scales.py")
    taken_in = {"policies/compiled.py", "problem/flat_sums.py", "environment/columns.py", "simulator/kernel.py"}
    assert taken_in < names(folder)


def test_what_kernel_files_hold_decides_whether_they_are_compiled_again(tmp_path: Path) -> None:
    tmp_path = tmp_path / "toy"
    kernel, other = tmp_path / "simulator" / "kernel.py", tmp_path / "cli" / "command.py"
    index, maker = tmp_path / "heuristics" / "__pycache__" / "moves.nbi", tmp_path / "compiling.py"
    for path in (kernel, other, index, maker):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("one")
    text = "from toy.compiling import compiled\n@compiled()\ndef kernel():\n    return "
    kernel.write_text(f"{text}1")
    assert digest_of_kernels(tmp_path)
    assert not index.exists()

    def dropped(path: Path | None = None, text: str = "", age: float = 0.0) -> bool:
        before = digest_of_kernels(tmp_path)
        index.write_text("compiled")
        if path is not None:
            path.write_text(text)
            os.utime(path, (time.time() - age,) * 2)
        assert (digest_of_kernels(tmp_path) == before) is index.exists()
        return not index.exists()

    assert not dropped()
    assert not dropped(kernel, f"{text}1", age=-1e8), "it is dated in the future"
    assert not dropped(other, "two")
    assert dropped(kernel, f"{text}2", age=-1e8)
    assert not dropped()
    assert dropped(kernel, f"{text}3", age=1e8)
    found = digest_of_kernels(tmp_path)
    killed = index.with_name("moves.1.nbc.tmp.7a30b2")  # while it was written
    killed.write_text("comp")
    kernel.rename(kernel.with_name("renamed.py"))
    assert digest_of_kernels(tmp_path) != found
    assert not index.exists()
    assert not killed.exists()


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"0", b"{everything}", b"{everything}\n12", bytes(129)])
def test_a_remembered_digest_that_is_not_whole_is_made_again(toy: Path, content: bytes) -> None:
    found, stamp = digest_of_kernels(toy), toy / "__pycache__" / "kernels.sha256"
    whole = stamp.read_bytes()
    stamp.write_bytes(content.replace(b"{everything}", whole.split()[0]))
    assert digest_of_kernels(toy) == found
    assert stamp.read_bytes() == whole


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="everything can be written")
def test_a_folder_that_cant_be_written_is_left_alone(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    assert digest_of_kernels(tmp_path)
    tmp_path.chmod(0o700)
    assert list(tmp_path.iterdir()) == []
