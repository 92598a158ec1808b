"""Kernels depend on the files that they take something in from, and on no others."""

import shutil
from pathlib import Path

import pytest

import placeto
from placeto.compiling import drop_stale_caches
from placeto.kernel_files import kernel_files

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
    assert drop_stale_caches(folder)

    def drops(*edited: str) -> bool:
        for name in edited:
            (folder / name).write_text((folder / name).read_text() + "\n# edited\n")
        return drop_stale_caches(folder)

    python = "policies/placeto.py", "policies/placeto_paper.py", "policies/guided_search.py", "policies/one_shot/gdp.py"
    assert not drops(*python, "environment/rewards.py", "heuristics/naive.py")
    assert drops("policies/scales.py")
    taken_in = {"policies/compiled.py", "problem/flat_sums.py", "environment/columns.py", "simulator/kernel.py"}
    assert taken_in < names(folder)
