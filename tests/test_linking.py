"""Large kernels are compiled once, and found by the kernels that call them, in this process and in the next."""

import importlib
import json
import os
import runpy
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from numba.core import event

TERMS = 80  # of a sum that LLVM can't shorten: each takes a branch
SUM = "".join(f"    if weight[{n}] > x:\n        total += weight[{n}] / (x + {n})\n" for n in range(TERMS))
SOURCE = f"""
import os
from placeto.compiling import compiled

@compiled(inner=True)
def small(x):
    return x + 1.0

@compiled(inner=True, fastmath=set(os.environ.get("FASTMATH", "contract nsz arcp afn reassoc").split()))
def large(x, weight):
    total = 0.0
{SUM}
    return total

@compiled(inner=True)
def between(x, weight):
    return large(small(x), weight)

@compiled()
def one(x, weight):
    return between(x, weight)

@compiled()
def other(x, weight):
    return 2.0 * large(x, weight)
"""
PROGRAM = f"""
import json, sys
import numpy as np
import toy_kernels as toy
found = [toy.one(0.5, np.arange({TERMS}.0)), toy.other(1.5, np.arange({TERMS}.0))]
compiled = [name for name in ("large", "between", "one", "other") if getattr(toy, name).stats.cache_misses]
print(json.dumps([found, compiled]))
"""


def expected(x: float) -> float:
    return sum(n / (x + n) for n in range(TERMS) if n > x)


@pytest.mark.slow
def test_a_large_kernel_is_compiled_once_and_the_next_process_reads_it_from_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "toy_kernels.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(str(tmp_path))
    toy, weight = importlib.import_module("toy_kernels"), np.arange(float(TERMS))
    assert toy.one(0.5, weight) == pytest.approx(expected(1.5))
    assert toy.other(1.5, weight) == pytest.approx(2.0 * expected(1.5))
    for caller in (toy.one, toy.other):
        (code,) = caller.inspect_llvm().values()
        heads = [line for line in code.splitlines() if line.startswith(("declare", "define")) and "toy_kernels" in line]
        assert [line.split()[0] for line in heads if "large" in line] == ["declare"]
        assert not any(line.startswith("declare") for line in heads if "large" not in line), "small ones are taken in"

    assert compiled_by_another(tmp_path) == []
    for index in tmp_path.rglob("*large*.nbi"):
        index.unlink()
    assert compiled_by_another(tmp_path) == ["large"], "those that call it are read, and find it by its name"


def compiled_by_another(folder: Path, hash_seed: int = 0) -> list[str]:
    """Which of the toy's kernels a process compiles that runs them all, and finds what it should."""
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(folder), str(Path(__file__).parents[1])]),
        "PYTHONHASHSEED": str(hash_seed),
    }
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, check=True)
    found, compiled = json.loads(done.stdout)
    assert found == pytest.approx([expected(1.5), 2.0 * expected(1.5)])
    return compiled


@pytest.mark.slow
def test_processes_that_compile_at_the_same_time_call_kernels_by_the_same_names(tmp_path: Path) -> None:
    """Sets of options are in another order in each process; the names that followed it led to a call of address 0."""
    folders = [tmp_path / str(seed) for seed in range(2)]
    for seed, folder in enumerate(folders):
        folder.mkdir()
        source = folder / "toy_kernels.py"
        source.write_text(SOURCE)
        os.utime(source, (0, 0))
        assert compiled_by_another(folder, seed) == ["large", "between", "one", "other"]
    take(folders[0], folders[1])
    assert compiled_by_another(folders[1], 2) == []


@pytest.mark.slow
def test_who_calls_a_kernel_that_is_not_the_one_in_its_file_is_compiled_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = [tmp_path / "as_it_is", tmp_path / "without_fastmath"]
    for folder in folders:
        folder.mkdir()
        (folder / "toy_kernels.py").write_text(SOURCE)
        compiled_by_another(folder)
        monkeypatch.setenv("FASTMATH", "nsz arcp afn reassoc")
    monkeypatch.delenv("FASTMATH")
    take(folders[1], folders[0])
    assert compiled_by_another(folders[0]) == ["between", "one", "other"]
    assert compiled_by_another(folders[0]) == []


def take(source: Path, target: Path) -> None:
    """Replace what was compiled of the large kernel in one folder by that of another."""
    (theirs,), (ours,) = (tuple(folder.rglob("*large*.nbc")) for folder in (source, target))
    ours.write_bytes(theirs.read_bytes())


class Watched(event.Listener):
    """Counts what is compiled."""

    def __init__(self) -> None:
        self.names: Counter[str] = Counter()

    def on_start(self, event: event.Event) -> None:
        self.names[event.data["dispatcher"].py_func.__qualname__] += 1

    def on_end(self, event: event.Event) -> None:
        pass


def test_a_function_that_kernels_of_different_options_call_is_compiled_once(tmp_path: Path) -> None:
    """As numpy's are, which numba implements by `overload`."""
    file = tmp_path / "kernels.py"
    file.write_text(
        "from numba.extending import overload\nfrom placeto.compiling import compiled\n"
        "def part(x, y):\n    return x / y\n"
        "@overload(part)\ndef _part(x, y):\n"
        "    def implementation(x, y):\n        return x / y\n"
        "    return implementation\n"
        "@compiled()\ndef one(x, y):\n    return part(x, y)\n"
        "@compiled(nogil=True)\ndef nogil(x, y):\n    return part(x, y)\n"
        "@compiled(error_model='numpy')\ndef other(x, y):\n    return part(x, y)\n"
    )
    kernels, watched = runpy.run_path(str(file)), Watched()
    with event.install_listener("numba:compile", watched):
        for name, count in (("one", 1), ("nogil", 1), ("other", 2)):
            assert kernels[name](1.0, 4.0) == 0.25
            assert sum(watched.names[inner] for inner in watched.names if "implementation" in inner) == count
    assert kernels["other"](1.0, 0.0) == np.inf
    with pytest.raises(ZeroDivisionError):
        kernels["nogil"](1.0, 0.0)
