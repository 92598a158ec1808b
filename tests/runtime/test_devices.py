"""Devices of this machine."""

import os
import subprocess
import sys

import pytest
import torch

from placeto.errors import RunError
from placeto.runtime.local_devices import open_devices


def test_a_core_has_a_pinned_thread_of_its_own() -> None:
    cores, before = sorted(os.sched_getaffinity(0)), os.sched_getaffinity(0)
    (device,) = open_devices(["cpu"])
    assert (device.name, device.kind, device.is_cpu) == ("cpu:0", "cpu", True)
    assert device.run(os.sched_getaffinity, 0) == {cores[0]}
    assert device.run(torch.get_num_threads) == 1
    assert os.sched_getaffinity(0) == before


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_cores_share_the_memory() -> None:
    one, two = open_devices(["cpu:0"])[0], open_devices(["cpu:0", "cpu:1"])
    assert [device.memory for device in two] == [one.memory // 2] * 2


@pytest.mark.parametrize(
    ("names", "says"),
    [
        ([], "no device is given; this machine has cpu:0"),
        (["cpu:9999"], "device 'cpu:9999': this machine has cpu:0"),
        (["tpu"], "device 'tpu': this machine has cpu:0"),
        (["cuda:77"], "device 'cuda:77': this machine has cpu:0"),
        (["cpu", "cpu:0"], "device 'cpu:0' is given twice"),
    ],
)
def test_devices_that_are_not_there(names: list[str], says: str) -> None:
    with pytest.raises(RunError) as refused:
        open_devices(names)
    assert str(refused.value).startswith(says)


FAULTS = """
import resource, torch
from placeto.runtime.local_devices import open_devices
def faults():
    made = [torch.ones(2**20) for _ in range(16)]  # 4 MiB each
    before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
    del made
    again = [torch.ones(2**20) for _ in range(16)]
    return resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before
(device,) = open_devices(["cpu:0"])
print([device.run(faults) for _ in range(4)][-1])
"""


def test_freed_memory_is_kept() -> None:
    """In a process of its own, whose memory nothing else has cut into pieces."""
    done = subprocess.run([sys.executable, "-c", FAULTS], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 1000, done.stdout  # five thousand otherwise
