"""The devices of this machine: CPU cores, each with a thread of its own, and GPUs.

``cpu:0`` is the first core that this process may use, ``cpu:1`` the second; ``cpu`` is ``cpu:0``. What runs on a core
runs in one thread, which is pinned to it.
"""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch

from placeto.errors import RunError
from placeto.plumbing.cores import cores, pin
from placeto.problem.messages import listed, quote

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8  # of malloc.h


DeviceError = RunError  # its name before, for one version


@dataclass(frozen=True, eq=False)
class LocalDevice:
    """A device of this machine."""

    name: str  # "cpu:0", "cuda:1"
    kind: str  # "cpu", or the model of the GPU: devices of one kind share measured times
    torch_device: torch.device
    memory: int  # bytes; each core has an equal share of the machine's
    thread: ThreadPoolExecutor  # of one thread: what uses the device runs here

    @property
    def is_cpu(self) -> bool:
        """Whether the device is a core, whose calls return when they are done."""
        return self.torch_device.type == "cpu"

    def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function in the device's thread, and return its result."""
        return self.thread.submit(function, *arguments).result()

    def synchronize(self) -> None:
        """Wait until all that was launched on the device is done."""
        if not self.is_cpu:
            torch.cuda.synchronize(self.torch_device)


def open_devices(names: Sequence[str]) -> list[LocalDevice]:
    """Open devices by name, each with a thread of its own.

    Raises:
        RunError: there is no name, one is given twice, or this machine has no such device.
    """
    usable = cores()
    available = [f"cpu:{i}" for i in range(len(usable))] + [f"cuda:{i}" for i in range(torch.cuda.device_count())]
    full = [f"{name}:0" if re.fullmatch("cpu|cuda", name) else name for name in names]
    if not full:
        raise RunError(f"no device is given; this machine has {listed(available)}")
    for name in full:
        if name not in available:
            raise RunError(f"device {quote(name)}: this machine has {listed(available)}")
        if full.count(name) > 1:
            raise RunError(f"device {quote(name)} is given twice")
    keep_memory()
    shared = sum(name.startswith("cpu") for name in full)
    return [_open(name, usable, shared) for name in full]


def keep_memory() -> None:
    """Make malloc keep what is freed, as GPUs' allocators do, in place of giving it back to the system.

    Otherwise each large tensor gets new pages from the system. This takes up to a third of a step on a CPU, and not
    equally long in each step. If the C library isn't GNU's, nothing is done.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, 32 << 20)  # the largest threshold that malloc accepts
        mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)
        mallopt(_M_ARENA_MAX, 1)  # further arenas give freed memory back in spite of these thresholds


def _open(name: str, usable: Sequence[int], shared: int) -> LocalDevice:
    kind, _, number = name.partition(":")
    if kind == "cpu":
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // shared
        thread = ThreadPoolExecutor(1, f"placeto {name}", _own_core, (usable[int(number)],))
        return LocalDevice(name, "cpu", torch.device("cpu"), memory, thread)
    properties = torch.cuda.get_device_properties(int(number))
    thread = ThreadPoolExecutor(1, f"placeto {name}", torch.cuda.set_device, (int(number),))
    return LocalDevice(name, properties.name, torch.device(name), properties.total_memory, thread)


def _own_core(core: int) -> None:
    """Pin this thread to a core, and let torch compute in no other thread."""
    pin(core)
    torch.set_num_threads(1)
