"""The step of a model whose modules are placed as wholes, as `accelerate` runs it: in program order.

Each unit (`placeto.problem.step.whole_modules`) goes to the device that has most of the unit's time in a placement;
units that must share a device go together. The step is simulated by the dispatch of its problem, and in program order,
as Python runs it.

Legend: N ops, U units, D devices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from placeto.problem.graph import ComputationGraph
from placeto.problem.graph.module_paths import around
from placeto.problem.problem import PlacementProblem
from placeto.problem.step.whole_modules import Units, module_units
from placeto.simulator.schedule import Schedule, simulate


@dataclass(frozen=True, eq=False)
class ModuleStep:
    """A placement of whole modules."""

    units: Units
    device: np.ndarray  # (U,) int64, the device of each unit; the last is the main device
    placement: np.ndarray  # (N,) int64, the device of each op
    notes: tuple[str, ...]  # sentences: where it had to differ from the given placement, and why
    problem: PlacementProblem

    @cached_property
    def whole(self) -> Schedule:
        """The schedule of `placement`, by the problem's dispatch."""
        return simulate(self.problem, self.placement)

    @cached_property
    def in_order(self) -> Schedule:
        """The schedule of `placement`, in program order."""
        return simulate(self.problem.under("list"), self.placement)


def in_whole_modules(schedule: Schedule, whole: Sequence[str] = ()) -> ModuleStep:
    """Return the placement of whole modules that is most like a placement.

    Args:
        schedule: the schedule of the placement.
        whole: paths of modules that must not be divided, in addition to the blocks.

    Raises:
        PlanError: the graph has no modules, or lacks one of `whole`.
    """
    problem = schedule.problem
    units = module_units(problem.graph, whole)
    device, notes = _devices(schedule, units)
    return ModuleStep(units, device, _of_ops(problem.graph, units, device), notes, problem)


def _devices(schedule: Schedule, units: Units) -> tuple[np.ndarray, tuple[str, ...]]:
    """Return the device of each unit (U,), and notes on what had to move."""
    root = len(units.names) - 1
    parts = [set(around(name)) for name in units.names]
    time = schedule.finish_us - schedule.start_us + 1e-9
    votes = np.zeros((root + 1, schedule.problem.num_devices))
    of_op = np.where(units.unit >= 0, units.unit, np.where(units.where == units.joined[root], root, -1))
    has_unit = of_op >= 0
    np.add.at(votes, (of_op[has_unit], schedule.placement[has_unit]), time[has_unit])
    joined_votes = np.zeros_like(votes)
    np.add.at(joined_votes, units.joined, votes)
    voted = joined_votes[units.joined].any(1)
    device = joined_votes[units.joined].argmax(1)
    for unit in np.flatnonzero(~voted[:root]).tolist():  # without ops: with the unit of the most similar path
        near = max(np.flatnonzero(voted[:root]).tolist(), key=lambda other: len(parts[unit] & parts[other]))
        device[units.joined == units.joined[unit]] = device[near]
    with_root = units.joined == units.joined[root]
    used = set(device[:root].tolist())
    computing = {d for d in used if not schedule.problem.cluster.devices[d].is_cpu}
    main = min(computing or used) if with_root[:root].any() or units.own else int(device[0])
    voted_device = device.copy()
    device[with_root] = main
    divided = (votes[:root] > 0).sum(1) > 1
    notes = [
        units.whole[name] for name, apart in zip(units.names, divided, strict=False) if apart and name in units.whole
    ]
    for *ends, why in units.joins:
        if votes[ends].any(1).all() and len(set(votes[ends].argmax(1).tolist())) == 2:
            notes.append(why)
    moved = [units.names[unit] for unit in np.flatnonzero(with_root[:root] & (voted_device[:root] != main)).tolist()]
    if moved:
        lie = "lies" if len(moved) == 1 else "lie"
        notes.append(f"{', '.join(moved)} {lie} on the main device, {main}, where accelerate brings the model's inputs")
    return device, tuple(dict.fromkeys(notes))


def _of_ops(graph: ComputationGraph, units: Units, device: np.ndarray) -> np.ndarray:
    """(N,) the device of each op: that of its unit, else of the first op that it reads, as accelerate would run it."""
    placement = np.where(units.where >= 0, device[units.where], -1)
    for op in graph.topological_order.tolist():
        if placement[op] < 0:
            placement[op] = placement[graph.reads[op][0]] if graph.reads[op] else -1
    for op in graph.topological_order[::-1].tolist():  # inputs, which read nothing
        if placement[op] < 0:
            placement[op] = placement[graph.readers[op][0]] if graph.readers[op] else 0
    _, first, colour = np.unique(graph.colocation, return_index=True, return_inverse=True)
    return np.where(graph.colocation >= 0, placement[first][colour], placement)
