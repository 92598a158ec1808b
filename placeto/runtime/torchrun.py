"""Runs programs such as exported pipelines by torchrun on devices of this machine, and reads the times of steps."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from placeto.errors import RunError
from placeto.runtime.local_devices import LocalDevice

_STEP = re.compile(r"^step \d+: loss \S+, (\S+) ms")
_ERROR = re.compile(r"^(error: |(\[rank\d+\]: )?[\w.]*(Error|Exception): )")

_ENDS_S = 2.0  # within which torchrun ends its processes after a signal
_KEEP_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(32 << 20), "MALLOC_TRIM_THRESHOLD_": str(2**31 - 1)}
"""Thresholds of malloc in GNU's C library, as `placeto.runtime.local_devices.keep_memory` sets them to measure ops."""


def torchrun(
    folder: Path,
    devices: Sequence[LocalDevice],
    steps: int,
    *,
    check: bool = False,
    each: Callable[[str], None] = lambda line: None,
) -> list[float]:
    """Run a pipeline that `placeto export --format torch-pipeline` has written to a folder, a process for each device.

    Processes on cores have one thread each, and all of them share the given cores.

    Args:
        folder: the folder with run.py.
        devices: the device of each rank; all are cores, or all are GPUs.
        steps: how many steps to run.
        check: whether each process also trains the whole model, and compares.
        each: is called with each line that the program prints.

    Returns:
        Microseconds of each step.

    Raises:
        RunError: devices of both kinds, or the program fails.
    """
    arguments = ["--steps", str(steps), "--device", "cpu" if devices[0].is_cpu else "cuda"]
    times = []
    for line in lines_of([str(folder / "run.py")], [*arguments, *(["--check"] if check else [])], devices):
        each(line)
        if match := _STEP.match(line):
            times.append(1e3 * float(match[1]))
    return times


def lines_of(program: Sequence[str], arguments: Sequence[str], devices: Sequence[LocalDevice]) -> Iterator[str]:
    """Run a program by torchrun, a process for each device; yield the lines that they print.

    Args:
        program: the program as torchrun takes it: a file, or ``--module`` and a name.
        arguments: the arguments of the program.
        devices: the device of each rank.

    Raises:
        RunError: devices of both kinds, or the program fails.
    """
    cores, gpus = ([device for device in devices if device.is_cpu is cpu] for cpu in (True, False))
    if cores and gpus:
        raise RunError(f"{cores[0].name} and {gpus[0].name}: processes run on cores or on GPUs, not on both")
    numbers = [int(device.name.partition(":")[2]) for device in devices]
    environment = dict(os.environ)
    if gpus:
        seen = environment.get("CUDA_VISIBLE_DEVICES", "").split(",")
        names = [seen[number] if seen != [""] else str(number) for number in numbers]
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(names)
    else:
        environment |= {"OMP_NUM_THREADS": "1", **_KEEP_MEMORY}
    command = [sys.executable, "-W", "ignore", "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", str(len(devices)), *program, *arguments]
    with tempfile.TemporaryFile("w+") as errors, _on_cores(numbers if cores else ()):
        with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=errors, text=True) as running:
            assert running.stdout is not None
            try:
                for line in running.stdout:
                    yield line.rstrip("\n")
            except BaseException:
                _end(running)
                raise
        errors.seek(0)
        told = [line.strip() for line in errors if line.strip()]
    if running.returncode:
        why = [line for line in told if _ERROR.search(line)]
        why = [line for line in why if "Connection closed by peer" not in line] or why  # the first to fail says why
        raise RunError(f"{Path(program[-1]).name} has failed: {(why or told or ['its processes printed nothing'])[-1]}")


def _end(running: subprocess.Popen[str]) -> None:
    """End torchrun, unless the signal that ends us has reached it as well: a second one would disturb its end."""
    with suppress(subprocess.TimeoutExpired):
        running.wait(_ENDS_S)
    if running.poll() is None:
        running.terminate()


@contextmanager
def _on_cores(numbers: Sequence[int]) -> Iterator[None]:
    """Within it, started processes may use the cores with these numbers, among those of this process; all if none."""
    before = sorted(os.sched_getaffinity(0))
    try:
        os.sched_setaffinity(0, {before[number] for number in numbers} or before)
        yield
    finally:
        os.sched_setaffinity(0, before)
