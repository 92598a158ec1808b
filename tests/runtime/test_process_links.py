"""Transfers between processes."""

import os
from dataclasses import replace

import numpy as np
import pytest
import torch

from placeto.runtime.devices import open_devices
from placeto.runtime.process_links import process_matrices
from placeto.runtime.torchrun import TorchrunError


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_two_processes_send_to_each_other() -> None:
    bandwidth, latency_us = process_matrices(open_devices(["cpu:0", "cpu:1"]))
    assert 10 < bandwidth[0, 1] == bandwidth[1, 0] < 1e6  # bytes/us: 10 MB/s to 1 TB/s
    assert 1 < latency_us[0, 1] == latency_us[1, 0] < 1e5
    assert np.diagonal(latency_us).tolist() == [0.0, 0.0]


def test_gpus_are_refused() -> None:
    (core,) = open_devices(["cpu:0"])
    gpu = replace(core, name="cuda:0", torch_device=torch.device("cuda:0"))
    with pytest.raises(TorchrunError, match="cuda:0: transfers between processes are measured between cores only"):
        process_matrices([core, gpu])
