"""Placements that are run to be judged."""

import numpy as np
import torch
from torch import nn

from placeto.problem.problem import PlacementProblem
from placeto.runtime.local_devices import open_devices
from placeto.runtime.measuring.measured import FAILED, MeasuredSteps
from placeto.runtime.measuring.profiling import profile
from placeto.runtime.real_steps import real_training


def test_each_placement_is_run_once_and_what_fails_costs() -> None:
    step = real_training(nn.Sequential(nn.Embedding(4, 8), nn.Linear(8, 8)), [torch.arange(4)], lambda y: y.sum())
    devices = open_devices(["cpu:0", "cpu:1"])
    made = profile([step], devices, 0.1)
    problem = PlacementProblem(step.capture.graph, made.cluster, made.costs)
    measure = MeasuredSteps([problem], [step], devices)
    split = np.arange(problem.num_ops) % 2
    us = measure(0, split)
    assert us == measure(0, split) > 0
    assert measure.best_us(0) == min(us, measure.one_device_us[0])
    step.leaves[-1].fill_(9)  # no such row of the embedding
    assert measure(0, split) == us
    assert measure(0, 1 - split) == FAILED * measure.one_device_us[0]
