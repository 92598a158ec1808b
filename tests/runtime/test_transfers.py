"""Transfers between devices."""

import os

import numpy as np
import pytest

from placeto.runtime.local_devices import open_devices
from placeto.runtime.transport import transfers

two_cores = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")


@two_cores
def test_matrices_of_two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfers, "REPEATS", 5)
    bandwidth, latency_us = transfers.matrices(open_devices(["cpu:0", "cpu:1"]))
    assert np.isfinite(bandwidth).all()
    assert 10 < bandwidth[0, 1] < 1e6  # bytes/us: 10 MB/s to 1 TB/s
    assert 0 <= latency_us[0, 1] < 1e5
    assert latency_us[0, 0] == 0


@two_cores
@pytest.mark.parametrize("way", [transfers._between_threads, transfers._copied])
def test_more_bytes_take_longer(way: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfers, "REPEATS", 5)
    source, destination = open_devices(["cpu:0", "cpu:1"])
    if way is transfers._copied:  # as to a GPU: a copy within a device would be none
        monkeypatch.setattr(transfers.torch.Tensor, "to", lambda tensor, device: tensor.clone())
    small, large = way(source, destination, 64), way(source, destination, 2**25)  # type: ignore[operator]
    assert 0 < small < large


def test_peaks_are_plausible() -> None:
    flops, bandwidth = transfers.peaks(open_devices(["cpu:0"])[0])
    assert 1e8 < flops < 1e15
    assert 1e7 < bandwidth < 1e13
