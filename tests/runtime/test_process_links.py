"""Transfers between processes."""

import os
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from placeto.errors import RunError
from placeto.runtime.local_devices import open_devices
from placeto.runtime.measuring.profiling import profile
from placeto.runtime.real_steps import real_training
from placeto.runtime.transport.process_links import SIZES, _addition, process_links
from placeto.simulator.tool_steps.pipeline_step import CHUNK, SPLIT, SUM


@pytest.mark.slow
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_two_processes_send_to_each_other() -> None:
    step = real_training(nn.Linear(4, 4), [torch.randn(4, 4)], lambda y: y.square().mean(), name="layer")
    made = profile([step], open_devices(["cpu:0", "cpu:1"]), 0.1, processes=True)
    bandwidth, latency_us, fits = made.cluster.bandwidth, made.cluster.latency_us, made.costs.fits["cpu"]
    assert 10 < bandwidth[0, 1] == bandwidth[1, 0] < 1e6  # bytes/us: 10 MB/s to 1 TB/s
    assert 1 < latency_us[0, 1] == latency_us[1, 0] < 1e5
    assert np.diagonal(latency_us).tolist() == [0.0, 0.0]
    assert 1 < fits[CHUNK].fixed_us < 1e5
    assert 0 <= fits[SUM].us_per_byte < 1 / 10  # 0 where other processes take the cores during the transfers alone
    assert fits[SPLIT].fixed_us + fits[SPLIT].us_per_byte > 0


def test_a_sum_is_the_transfers_of_a_ring_and_its_additions() -> None:
    count, apart = 3, 1 - np.eye(3)
    for fixed, per_byte in ((40.0, 0.002), (0.0, 0.001)):
        part = np.array(SIZES) / count
        took = 2 * (count - 1) * (50.0 + part / 2000.0) + (count - 1) * (fixed + per_byte * part)
        fit = _addition(took.tolist(), np.full((3, 3), 2000.0), 50.0 * apart)
        assert fit.fixed_us == pytest.approx(fixed, abs=1e-6)
        assert fit.us_per_byte == pytest.approx(per_byte)


def test_gpus_are_refused() -> None:
    (core,) = open_devices(["cpu:0"])
    gpu = replace(core, name="cuda:0", torch_device=torch.device("cuda:0"))
    with pytest.raises(RunError, match="cuda:0: transfers between processes are measured between cores only"):
        process_links([core, gpu])
