"""Measure transfers between devices, and the peak speeds that the roofline needs."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from queue import SimpleQueue

import numpy as np
import torch
from scipy.optimize import nnls

from placeto.runtime.local_devices import LocalDevice
from placeto.runtime.measuring.stopwatch import in_turns, took_us

SIZES = tuple(4**power for power in range(2, 13))  # bytes: 16 to 16 Mi
REPEATS = 20  # the first doesn't count


def fitted(times: Mapping[int, float]) -> tuple[float, float]:
    """Return latency in us and bandwidth in bytes/us, with the least sum of squared relative errors.

    A transfer takes ``latency + bytes / bandwidth``.

    Args:
        times: bytes -> measured microseconds.
    """
    us = np.array(list(times.values()))
    terms = np.array([[1.0, size] for size in times])
    latency, per_byte = nnls(terms / us[:, None], np.ones(len(us)))[0]
    fastest = max(size / time_us for size, time_us in times.items())
    return float(latency), 1.0 / per_byte if per_byte > 0 else float(fastest)


def medians_us(*functions: Callable[[], object]) -> list[float]:
    """Return the median microseconds of each function; they are called in turns."""
    return [float(np.median(us)) for us in in_turns(functions, 0.0, REPEATS - 1)]


def _between_threads(source: LocalDevice, destination: LocalDevice, size: int) -> float:
    """Return the median microseconds from putting a tensor into a queue to having copied it in the other thread."""
    sent: SimpleQueue[tuple[torch.Tensor, float] | None] = SimpleQueue()
    back: SimpleQueue[float] = SimpleQueue()

    def receive() -> None:
        while (item := sent.get()) is not None:
            tensor, start = item
            copy = tensor.clone()
            back.put(time.perf_counter() - start)
            del copy, tensor, item

    def send() -> float:
        times = []
        for _ in range(REPEATS):
            tensor = torch.ones(size, dtype=torch.uint8)  # made anew, so that it is in the sender's caches
            sent.put((tensor, time.perf_counter()))
            times.append(back.get())
        sent.put(None)
        return float(np.median(times[1:])) * 1e6

    received = destination.thread.submit(receive)
    median: float = source.run(send)
    received.result()
    return median


def _copied(source: LocalDevice, destination: LocalDevice, size: int) -> float:
    """Return the median microseconds of a copy, until both devices are done."""

    def measure() -> float:
        tensor = torch.ones(size, dtype=torch.uint8, device=source.torch_device)

        def copy() -> None:
            tensor.to(destination.torch_device)
            source.synchronize()
            destination.synchronize()

        return medians_us(copy)[0]

    owner = destination if source.is_cpu else source  # a GPU's thread
    return owner.run(measure)


def peaks(device: LocalDevice) -> tuple[float, float]:
    """Return FLOP/s of a float32 matrix product and bytes/s of a copy, each the best of five, for the roofline."""
    return device.run(_peaks, device)


def _peaks(device: LocalDevice) -> tuple[float, float]:
    side, elements = (768, 2**22) if device.is_cpu else (8192, 2**28)
    matrix = torch.ones(side, side, device=device.torch_device)
    vector = torch.ones(elements, device=device.torch_device)
    out = torch.empty_like(vector)
    product_us = min(took_us(device, torch.matmul, matrix, matrix) for _ in range(5))
    copy_us = min(took_us(device, out.copy_, vector) for _ in range(5))
    return 2e6 * side**3 / product_us, 2e6 * vector.nbytes / copy_us


def matrices(devices: Sequence[LocalDevice]) -> tuple[np.ndarray, np.ndarray]:
    """Measure copies of many sizes between all devices.

    Between cores the tensor goes through a queue to the other thread, which copies it. The time to wake that thread
    counts. To and from a GPU, one thread copies and waits.

    Returns:
        (D, D) bandwidth in bytes/us and (D, D) latency in us, from row to column.
    """
    bandwidth, latency_us = np.ones((len(devices), len(devices))), np.zeros((len(devices), len(devices)))
    for i, source in enumerate(devices):
        for j, destination in enumerate(devices):
            if i != j:
                way = _between_threads if source.is_cpu and destination.is_cpu else _copied
                latency_us[i, j], bandwidth[i, j] = fitted({size: way(source, destination, size) for size in SIZES})
    return bandwidth, latency_us
