"""Programs that torchrun starts: their steps are read, and what they say when they fail is told."""

import os
import time
from collections.abc import Generator
from pathlib import Path

import pytest

from placeto.errors import RunError
from placeto.runtime.local_devices import open_devices
from placeto.runtime.torchrun import lines_of, torchrun

PROGRAM = """
import os, sys
rank, cores = os.environ["RANK"], len(os.sched_getaffinity(0))
if "--check" in sys.argv:
    sys.exit("error: no such luck")
if rank == "0":
    print("step 0: loss 1.5, 12.5 ms", flush=True)
    print("step 1: loss 1.25, 7.0 ms; whole model: loss 1.25", flush=True)
    print(f"{os.environ['WORLD_SIZE']} ranks, {cores} core, {os.environ['OMP_NUM_THREADS']} thread, {sys.argv[1:]}")
"""


@pytest.mark.slow
def test_steps_are_read_and_failures_are_told(tmp_path: Path) -> None:
    (tmp_path / "run.py").write_text(PROGRAM)
    lines: list[str] = []
    (device,) = open_devices(["cpu:0"])
    assert torchrun(tmp_path, [device], 2, each=lines.append) == [12500.0, 7000.0]
    assert lines[-1] == "1 ranks, 1 core, 1 thread, ['--steps', '2', '--device', 'cpu']"
    with pytest.raises(RunError, match=r"^run\.py has failed: error: no such luck$"):
        torchrun(tmp_path, [device], 2, check=True)


@pytest.mark.slow
def test_nobody_runs_on_when_the_rest_is_not_wanted(tmp_path: Path) -> None:
    program = "import os, time\nprint(os.getpid(), os.getppid(), flush=True)\ntime.sleep(300)\n"
    (tmp_path / "run.py").write_text(program)
    lines = lines_of([str(tmp_path / "run.py")], (), open_devices(["cpu:0"]))
    assert isinstance(lines, Generator)
    processes = [int(word) for word in next(lines).split()]
    began = time.monotonic()
    lines.close()
    assert time.monotonic() - began < 60.0
    for process in processes:
        with pytest.raises(ProcessLookupError):
            os.kill(process, 0)
