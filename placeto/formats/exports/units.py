"""Modules that are placed as a whole: the blocks of a model, and what stands beside them.

A unit is the shortest prefix of a module's path that ends in a number, as `encoder.layers.3`, or the whole path where
there is none. A module inside a unit that is to stay whole too is part of it.

Legend: N ops, U units.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from placeto.problem.graph import ComputationGraph

LOSS = "loss"
"""Module path of the ops of a loss function, which is no module."""


class ExportError(ValueError):
    """A graph or placement that a format can't say; the message says why."""


@dataclass(frozen=True, eq=False)
class Units:
    """Which ops belong to which unit."""

    names: tuple[str, ...]  # (U,) module paths, in the order of their first op
    unit: np.ndarray  # (N,) int64, -1 for ops between the units: of the whole model, or of the loss
    joined: np.ndarray  # (U,) int64, the first unit with which each shares parameters, mostly itself


def module_units(graph: ComputationGraph, whole: tuple[str, ...] = ()) -> Units:
    """The units of a graph.

    Args:
        graph: captured, so that its ops have modules.
        whole: paths of modules that are to stay whole, beside the blocks.

    Raises:
        ExportError: the graph has no modules, or not those that are to stay whole.
    """
    paths = [path for path in dict.fromkeys(graph.modules) if path not in ("", LOSS)]
    if not paths:
        raise ExportError(f"{graph.name} has no modules: only graphs that were captured from a module have them")
    for path in whole:
        if not any(_inside(other, path) for other in paths):
            raise ExportError(f"{graph.name} has no module {path!r}; there are {', '.join(paths[:8])}, ...")
    of_path = {path: _unit(path, whole) for path in paths}
    number: dict[str, int] = {}
    unit = np.full(graph.num_ops, -1, np.int64)
    for op in graph.topological_order.tolist():
        path = graph.modules[op]
        if path in of_path and graph.op_types[op] != "parameter":
            unit[op] = number.setdefault(of_path[path], len(number))
    for op in graph.topological_order.tolist():
        path = graph.modules[op]
        if path in of_path and unit[op] < 0:
            unit[op] = number.setdefault(of_path[path], len(number))
    return Units(tuple(number), unit, _tied(graph, unit, len(number)))


def with_whole_modules(graph: ComputationGraph, units: Units) -> ComputationGraph:
    """The graph whose units must each stay on one device: what they are made of is colocated."""
    colocation = graph.colocation.copy()
    root: dict[int, int] = {}  # colocation group of the graph -> unit
    group = np.where(units.unit >= 0, units.joined[units.unit], -1)
    for op in np.flatnonzero(group >= 0).tolist():
        if colocation[op] >= 0:
            root.setdefault(int(colocation[op]), int(group[op]))
    first = len(units.names)
    for op in range(graph.num_ops):
        if group[op] >= 0:
            colocation[op] = group[op]
        elif colocation[op] >= 0:
            colocation[op] = root.get(int(colocation[op]), first + int(colocation[op]))
    _, numbered = np.unique(colocation[colocation >= 0], return_inverse=True)
    colocation[colocation >= 0] = numbered
    return replace(graph, colocation=colocation)


def _unit(path: str, whole: tuple[str, ...]) -> str:
    inside = [module for module in whole if _inside(path, module)]
    if inside:
        return min(inside, key=len)
    parts = path.split(".")
    for depth, part in enumerate(parts, start=1):
        if part.isdigit():
            return ".".join(parts[:depth])
    return path


def _inside(path: str, module: str) -> bool:
    return path == module or path.startswith(f"{module}.")


def _tied(graph: ComputationGraph, unit: np.ndarray, count: int) -> np.ndarray:
    """Units that read one parameter, and those inside others, are joined."""
    root = list(range(count))

    def find(one: int) -> int:
        while root[one] != one:
            one = root[one]
        return one

    parameters = np.array([kind == "parameter" for kind in graph.op_types])
    for edge in np.flatnonzero(parameters[graph.edge_src]).tolist():
        here, there = int(unit[graph.edge_src[edge]]), int(unit[graph.edge_dst[edge]])
        if here >= 0 and there >= 0:
            one, other = sorted((find(here), find(there)))
            root[other] = one
    return np.array([find(one) for one in range(count)], np.int64)
