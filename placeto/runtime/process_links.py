"""Measure transfers between processes by `torch.distributed`, as its pipelines make them: gloo between cores.

Torchrun starts this module, a process for each core. Two processes send a tensor to each other and back while the
others wait; a transfer takes half of that.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence

import numpy as np
import torch
import torch.distributed as dist

from placeto.runtime.devices import LocalDevice
from placeto.runtime.torchrun import TorchrunError, lines_of
from placeto.runtime.transfers import REPEATS, SIZES, fitted


def process_matrices(devices: Sequence[LocalDevice]) -> tuple[np.ndarray, np.ndarray]:
    """(D, D) bandwidth in bytes/us and (D, D) latency in us, alike in both directions.

    Raises:
        TorchrunError: a device is no core, or the processes fail.
    """
    if other := next((device for device in devices if not device.is_cpu), None):
        raise TorchrunError(f"{other.name}: transfers between processes are measured between cores only, by gloo")
    bandwidth, latency_us = np.ones((len(devices), len(devices))), np.zeros((len(devices), len(devices)))
    for line in lines_of(["--module", "placeto.runtime.process_links"], (), devices):
        one, other_rank, times = json.loads(line)
        for ends in ((one, other_rank), (other_rank, one)):
            latency_us[ends], bandwidth[ends] = fitted(dict(zip(SIZES, times, strict=True)))
    return bandwidth, latency_us


def _half(one: int, other: int, size: int) -> float:
    """Median microseconds of a transfer, at rank `one`."""
    tensor, times = torch.ones(size, dtype=torch.uint8), []
    for _ in range(REPEATS):
        start = time.perf_counter()
        for source, destination in ((one, other), (other, one)):
            if dist.get_rank() == source:
                dist.send(tensor, destination)
            else:
                dist.recv(tensor, source)
        times.append(time.perf_counter() - start)
    return float(np.median(times[1:])) * 1e6 / 2


def main() -> None:
    """A line of JSON for each pair of ranks: both, and microseconds by size."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    for one in range(dist.get_world_size()):
        for other in range(one + 1, dist.get_world_size()):
            dist.barrier()
            if dist.get_rank() in (one, other):
                times = [_half(one, other, size) for size in SIZES]
                if dist.get_rank() == one:
                    print(json.dumps([one, other, times]), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
