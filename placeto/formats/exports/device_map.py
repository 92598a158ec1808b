"""A placement of whole modules, as `accelerate` and the models of Hugging Face take it: module path -> device.

A module whose units are all on one device has one entry. No module of the map contains another, as accelerate's hooks
would then move inputs to the outer one's device. `placeto.simulator.tool_steps.module_step` says where each unit goes.

Legend: U units, D devices.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from placeto.errors import PlacementError
from placeto.problem.graph import ComputationGraph
from placeto.problem.graph.module_paths import LOSS, around, inside
from placeto.problem.step.whole_modules import Units
from placeto.simulator.schedule import Schedule
from placeto.simulator.tool_steps.module_step import ModuleStep, in_whole_modules

if TYPE_CHECKING:
    from torch import nn

CPU = "cpu"  # accelerate's name of the CPU
OFFLOADED = (CPU, "disk")
"""Devices in a map whose modules accelerate computes on the main device: it copies their weights there."""


@dataclass(frozen=True, eq=False)
class DeviceMap:
    """The device of each module, and the step with it."""

    modules: dict[str, int]  # path -> number of a device, for all parameters, buffers and ops except those of the loss
    step: ModuleStep

    @property
    def main(self) -> int:
        """The device of the parameters, buffers and inputs of the model itself."""
        return int(self.step.device[-1])

    def named(self, names: Sequence[str] = ()) -> dict[str, int | str]:
        """Return the map as accelerate takes it.

        Args:
            names: (D,) names of the devices; if not given, "cpu" for a CPU and numbers for the others, in the cluster's
                order.

        Raises:
            PlacementError: not as many names as devices.
        """
        devices = self.step.whole.problem.cluster.devices
        if names and len(names) != len(devices):
            raise PlacementError(f"the cluster has {len(devices)} devices, {len(names)} names are given")
        targets: list[int | str] = [int(name) if name.isdigit() else name for name in names]
        if not targets:
            number = iter(range(len(devices)))
            targets = [CPU if device.is_cpu else next(number) for device in devices]
        return {module: targets[device] for module, device in self.modules.items()}

    def offload_note(self, named: dict[str, int | str]) -> str:
        """Return the reason why accelerate can't run the map `named`, as a sentence; "" if it can."""
        for tensor, reader in self.step.units.borrowed.items():
            for module, device in named.items():
                if device in OFFLOADED and inside(tensor, module):
                    advice = f"keep {module} on another device"
                    if reader and inside(tensor, reader):
                        advice = f"give dispatch_model(preload_module_classes=[...]) the class of {reader}"
                    where = f"{reader or 'the model itself'} reads {tensor} outside of its module"
                    return f"{module} is on {device!r}, and {where}, where accelerate doesn't load it: {advice}"
        return ""


def device_map(schedule: Schedule, whole: Sequence[str] = (), module: nn.Module | None = None) -> DeviceMap:
    """Return the device map that is most like a placement.

    Args:
        schedule: the schedule of the placement.
        whole: paths of modules that must not be divided, in addition to the blocks.
        module: not used: the graph names all tensors. It stays for one version.

    Raises:
        PlanError: the graph has no modules, or lacks one of `whole`.
        PlacementError: the devices of the placement are tensor-parallel groups.
    """
    if schedule.plan is not None and schedule.plan.width > 1:
        raise PlacementError(f"{schedule.problem.graph.name}: {schedule.plan.no_groups('a device map')}")
    step = in_whole_modules(schedule, whole)
    module_tensors = dict.fromkeys(step.units.own, int(step.device[-1]))
    return DeviceMap(_said(schedule.problem.graph, step.units, step.device) | module_tensors, step)


def _said(graph: ComputationGraph, units: Units, device: np.ndarray) -> dict[str, int]:
    """Path -> device of units, or of the outermost module with all its units if they are on one device."""
    of_units = dict(zip(units.names[:-1], device.tolist(), strict=False))
    between = {(graph.modules[op], int(device[units.where[op]])) for op in np.flatnonzero(units.where >= 0).tolist()}
    devices: dict[str, set[int]] = defaultdict(set)
    for path, at in (*of_units.items(), *((path, at) for path, at in between if path != LOSS and path not in of_units)):
        for module in around(path):
            devices[module].add(at)
    heads = (next(module for module in around(name) if len(devices[module]) == 1) for name in of_units)
    return {head: min(devices[head]) for head in heads}
