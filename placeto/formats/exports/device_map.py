"""A placement of whole modules, as `accelerate` and the models of Hugging Face take it: module path -> device.

Each unit (`hooks.py`) goes to the device that has most of the unit's time in the placement; units that must share a
device go together. A module whose units are all on one device has one entry. No module of the map contains another, as
accelerate's hooks would then move inputs to the outer one's device. Two schedules show what the map costs in comparison
with the placement: one with whole modules, and one that also keeps to program order, as Python would run it.

Legend: N ops, U units, D devices.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from placeto.formats.exports.hooks import Units, module_units, with_whole_modules
from placeto.formats.exports.units import ExportError
from placeto.problem.graph import ComputationGraph
from placeto.problem.graph.module_paths import LOSS, around, inside
from placeto.problem.problem import PlacementProblem
from placeto.simulator.schedule import Schedule, simulate

if TYPE_CHECKING:
    from torch import nn

CPU = "cpu"  # the beginning of all kinds of CPUs, and accelerate's name of the CPU
OFFLOADED = (CPU, "disk")
"""Devices in a map whose modules accelerate computes on the main device: it copies their weights there."""


@dataclass(frozen=True, eq=False)
class DeviceMap:
    """The device of each module, and how long the step takes with it."""

    modules: dict[str, int]  # path -> number of a device, for all parameters, buffers and ops except those of the loss
    main: int  # the device of the parameters, buffers and inputs of the model itself
    placement: np.ndarray  # (N,) int64, the device of each op under this map
    whole: Schedule  # of `placement`, by the problem's dispatch
    in_order: Schedule  # of `placement`, in program order
    notes: tuple[str, ...]  # sentences: where the map had to differ from the given placement, and why
    borrowed: dict[str, str]  # parameter that another module than its own reads -> this module, "" for the model itself

    def named(self, names: Sequence[str] = ()) -> dict[str, int | str]:
        """Return the map as accelerate takes it.

        Args:
            names: (D,) names of the devices; if not given, "cpu" for a CPU and numbers for the others, in the cluster's
                order.

        Raises:
            ExportError: not as many names as devices.
        """
        devices = self.whole.problem.cluster.devices
        if names and len(names) != len(devices):
            raise ExportError(f"the cluster has {len(devices)} devices, {len(names)} names are given")
        said: list[int | str] = [int(name) if name.isdigit() else name for name in names]
        if not said:
            number = iter(range(len(devices)))
            said = [CPU if device.kind.startswith(CPU) else next(number) for device in devices]
        return {module: said[device] for module, device in self.modules.items()}

    def offload_note(self, named: dict[str, int | str]) -> str:
        """Return the reason why accelerate can't run the map `named`, as a sentence; "" if it can."""
        for tensor, reader in self.borrowed.items():
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
        module: the module that was captured; needed for graphs of older versions only, which lack some of its
            parameters and buffers.

    Raises:
        ExportError: the graph has no modules.
    """
    problem = schedule.problem
    graph, cluster = problem.graph, problem.cluster
    units = module_units(graph, whole, module)
    device, main, notes = _devices(schedule, units)
    placement = _of_ops(graph, units, device)
    in_order = PlacementProblem(graph, cluster, problem.costs, "list")
    return DeviceMap(
        _said(graph, units, device) | dict.fromkeys(units.own, main),
        main,
        placement,
        simulate(problem, placement),
        simulate(in_order, placement),
        notes,
        units.borrowed,
    )


def whole_modules(graph: ComputationGraph, whole: Sequence[str] = ()) -> ComputationGraph:
    """Return the graph with all ops colocated that a device map keeps together, so that every placer keeps them so.

    Raises:
        ExportError: the graph has no modules, or lacks one of `whole`.
    """
    return with_whole_modules(graph, module_units(graph, whole))


def _devices(schedule: Schedule, units: Units) -> tuple[np.ndarray, int, tuple[str, ...]]:
    """Return the device of each unit (U,), the main device, and notes on what had to move."""
    root = len(units.names) - 1
    parts = [set(around(name)) for name in units.names]
    time = schedule.finish_us - schedule.start_us + 1e-9
    votes = np.zeros((root + 1, schedule.problem.num_devices))
    of_op = np.where(units.unit >= 0, units.unit, np.where(units.where == units.joined[root], root, -1))
    own = of_op >= 0
    np.add.at(votes, (of_op[own], schedule.placement[own]), time[own])
    together = np.zeros_like(votes)
    np.add.at(together, units.joined, votes)
    voted = together[units.joined].any(1)
    device = together[units.joined].argmax(1)
    for unit in np.flatnonzero(~voted[:root]).tolist():  # without ops: with the unit of the most similar path
        near = max(np.flatnonzero(voted[:root]).tolist(), key=lambda other: len(parts[unit] & parts[other]))
        device[units.joined == units.joined[unit]] = device[near]
    with_root = units.joined == units.joined[root]
    used = set(device[:root].tolist())
    computing = {d for d in used if not schedule.problem.cluster.devices[d].kind.startswith(CPU)}
    main = min(computing or used) if with_root[:root].any() or units.own else int(device[0])
    kept = device.copy()
    device[with_root] = main
    divided = (votes[:root] > 0).sum(1) > 1
    notes = [
        units.whole[name] for name, apart in zip(units.names, divided, strict=False) if apart and name in units.whole
    ]
    for *ends, why in units.joins:
        if votes[ends].any(1).all() and len(set(votes[ends].argmax(1).tolist())) == 2:
            notes.append(why)
    moved = [units.names[unit] for unit in np.flatnonzero(with_root[:root] & (kept[:root] != main)).tolist()]
    if moved:
        lie = "lies" if len(moved) == 1 else "lie"
        notes.append(f"{', '.join(moved)} {lie} on the main device, {main}, where accelerate brings the model's inputs")
    return device, main, tuple(dict.fromkeys(notes))


def _of_ops(graph: ComputationGraph, units: Units, device: np.ndarray) -> np.ndarray:
    """(N,) the device of each op: that of its unit, else of the first op that it reads, as accelerate would run it."""
    placement = np.where(units.where >= 0, device[units.where], -1)
    for op in graph.topological_order.tolist():
        if placement[op] < 0:
            placement[op] = placement[graph.reads[op][0]] if graph.reads[op] else -1
    for op in graph.topological_order[::-1].tolist():  # inputs, which read nothing
        if placement[op] < 0:
            placement[op] = placement[graph.readers[op][0]] if graph.readers[op] else 0
    for colour in np.unique(graph.colocation[graph.colocation >= 0]).tolist():
        together = np.flatnonzero(graph.colocation == colour)
        placement[together] = placement[together[0]]
    return placement


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
