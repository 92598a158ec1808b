"""Runs an exported pipeline by torchrun on devices of this machine, and reads how long its steps take."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from placeto.runtime.devices import LocalDevice

_STEP = re.compile(r"^step \d+: loss \S+, (\S+) ms")


class TorchrunError(ValueError):
    """A pipeline that doesn't run; the message has the last of what its processes say."""


def torchrun(
    folder: Path,
    devices: Sequence[LocalDevice],
    steps: int,
    *,
    check: bool = False,
    each: Callable[[str], None] = lambda line: None,
) -> list[float]:
    """Run the program of a folder that `placeto export --format torch-pipeline` writes, a process for each device.

    Processes on cores have one thread each, and all of them share the given cores.

    Args:
        folder: where run.py is.
        devices: of each rank; all are cores, or all are GPUs.
        steps: how many.
        check: whether each process trains the whole model beside, and compares.
        each: is called with each line that the program prints.

    Returns:
        Microseconds of each step.

    Raises:
        TorchrunError: devices of both kinds, or the program fails.
    """
    cores, gpus = ([device for device in devices if device.is_cpu is cpu] for cpu in (True, False))
    if cores and gpus:
        raise TorchrunError(f"{cores[0].name} and {gpus[0].name}: the ranks of a pipeline are all cores or all GPUs")
    numbers = [int(device.name.partition(":")[2]) for device in devices]
    environment = dict(os.environ)
    if gpus:
        seen = environment.get("CUDA_VISIBLE_DEVICES", "").split(",")
        names = [seen[number] if seen != [""] else str(number) for number in numbers]
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(names)
    else:
        environment["OMP_NUM_THREADS"] = "1"
    command = [sys.executable, "-W", "ignore", "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", str(len(devices)), str(folder / "run.py"), "--steps", str(steps)]
    command += ["--device", "cuda" if gpus else "cpu", *(["--check"] if check else [])]
    times = []
    with tempfile.TemporaryFile("w+") as errors, _on_cores(numbers if cores else ()):
        with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=errors, text=True) as running:
            assert running.stdout is not None
            for line in running.stdout:
                each(line.rstrip("\n"))
                if found := _STEP.match(line):
                    times.append(1e3 * float(found[1]))
        errors.seek(0)
        told = [line.strip() for line in errors if line.strip()]
    if running.returncode:
        why = [
            line
            for line in told
            if re.search(r"^(error: |\[rank\d+\]: \w*(Error|Exception)|\w*(Error|Exception):)", line)
        ]
        raise TorchrunError(f"the pipeline has failed: {(why or told or ['its processes say nothing'])[-1]}")
    return times


@contextmanager
def _on_cores(numbers: Sequence[int]) -> Iterator[None]:
    """Within it processes that are started may use these of the cores that this one may use; all if none is given."""
    before = sorted(os.sched_getaffinity(0))
    try:
        os.sched_setaffinity(0, {before[number] for number in numbers} or before)
        yield
    finally:
        os.sched_setaffinity(0, before)
