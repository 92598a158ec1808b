"""A placement of whole modules, as `accelerate` and the models of Hugging Face take it: module path -> device.

Each unit (`units.py`) goes where most of its time is; units with tied weights go together. Modules whose units all
agree are said once. What this costs against the free placement is simulated: with whole modules, and run in program
order besides, as Python would run it.

Legend: N ops, U units, D devices.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from placeto.formats.exports.units import Units, module_units, with_whole_modules
from placeto.problem.graph import ComputationGraph
from placeto.problem.problem import PlacementProblem
from placeto.simulator.schedule import Schedule, simulate


@dataclass(frozen=True, eq=False)
class DeviceMap:
    """Where each module goes, and what that takes."""

    modules: dict[str, int]  # path -> device, a number; of all that has parameters or ops
    placement: np.ndarray  # (N,) int64, what it says of the ops
    whole: Schedule  # with whole modules, by the problem's dispatch
    in_order: Schedule  # the same in program order


def device_map(schedule: Schedule, whole: tuple[str, ...] = ()) -> DeviceMap:
    """The device map next to a placement.

    Args:
        schedule: of the placement.
        whole: paths of modules that must not be divided, beside the blocks.

    Raises:
        ExportError: the graph has no modules.
    """
    problem = schedule.problem
    graph, cluster = problem.graph, problem.cluster
    units = module_units(graph, whole)
    time = schedule.finish_us - schedule.start_us + 1e-9
    votes = np.zeros((len(units.names), cluster.num_devices))
    own = units.unit >= 0
    np.add.at(votes, (units.joined[units.unit[own]], schedule.placement[own]), time[own])
    device = votes[units.joined].argmax(1)
    placement = _of_ops(graph, units, device)
    in_order = PlacementProblem(graph, cluster, problem.costs, "list")
    return DeviceMap(
        _shortest(dict(zip(units.names, device.tolist(), strict=True))),
        placement,
        simulate(problem, placement),
        simulate(in_order, placement),
    )


def whole_modules(graph: ComputationGraph, whole: tuple[str, ...] = ()) -> ComputationGraph:
    """The graph with each unit's ops colocated, so that every placer places modules as a whole.

    Raises:
        ExportError: the graph has no modules, or not those named.
    """
    return with_whole_modules(graph, module_units(graph, whole))


def _of_ops(graph: ComputationGraph, units: Units, device: np.ndarray) -> np.ndarray:
    """(N,) where ops run: with their unit, else with what they read first, as accelerate's hooks leave it."""
    placement = np.where(units.unit >= 0, device[units.unit], -1)
    inputs = np.searchsorted(graph.edge_dst, np.arange(graph.num_ops + 1))
    for op in graph.topological_order.tolist():
        if placement[op] < 0:
            sources = placement[graph.edge_src[inputs[op] : inputs[op + 1]]]
            placement[op] = sources[0] if len(sources) else -1
    consumers = np.full(graph.num_ops, -1, np.int64)
    consumers[graph.edge_src[::-1]] = graph.edge_dst[::-1]
    for op in graph.topological_order[::-1].tolist():  # inputs, which read nothing
        if placement[op] < 0:
            placement[op] = placement[consumers[op]] if consumers[op] >= 0 else 0
    for colour in np.unique(graph.colocation[graph.colocation >= 0]).tolist():
        together = np.flatnonzero(graph.colocation == colour)
        placement[together] = placement[together[0]]
    return placement


def _shortest(of_units: dict[str, int]) -> dict[str, int]:
    """The same said of modules whose units all agree."""
    if len(set(of_units.values())) == 1:
        return {"": next(iter(of_units.values()))}

    def said(names: list[str], depth: int) -> dict[str, int]:
        found: dict[str, int] = {}
        heads: dict[str, list[str]] = {}
        for name in names:
            heads.setdefault(".".join(name.split(".")[:depth]), []).append(name)
        for head, inside in heads.items():
            devices = {of_units[name] for name in inside}
            if len(devices) == 1:
                found[head] = devices.pop()
            elif head in inside:  # a module with parameters of its own, and others inside it
                found |= {name: of_units[name] for name in inside}
            else:
                found |= said(inside, depth + 1)
        return found

    return said(list(of_units), 1)
