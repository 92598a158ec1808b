"""Units, which are modules that are placed as a whole: the blocks of a model, and the modules beside them.

Legend: N ops, U units.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from placeto.problem.graph import ComputationGraph
from placeto.problem.graph.labels import TENSORS
from placeto.problem.graph.module_paths import LOSS, inside
from placeto.problem.step.borders import no_modules


class ExportError(ValueError):
    """A graph or placement that can't be exported to a format; the message says why."""


def paths_of(graph: ComputationGraph, whole: Sequence[str] = (), others: Iterable[str] = ()) -> list[str]:
    """Return the paths of the modules that compute or have parameters or buffers, without the model itself.

    Args:
        graph: captured, so that its ops have modules.
        whole: paths of modules that are to stay whole.
        others: names of parameters and buffers that the graph may not have.

    Raises:
        ExportError: the graph has no modules, or lacks one that is to stay whole.
    """
    owners = [name.rpartition(".")[0] for name in (*tensor_names(graph), *others)]
    paths = [path for path in dict.fromkeys((*graph.modules, *owners)) if path and (path != LOSS or path in owners)]
    if not paths:
        raise ExportError(f"{graph.name}: {no_modules(graph)}")
    for path in whole:
        if not any(inside(other, path) for other in paths):
            raise ExportError(f"{graph.name} has no module {path!r}; there are {', '.join(paths[:8])}, ...")
    return paths


def tensor_names(graph: ComputationGraph) -> dict[str, list[int]]:
    """Name of each parameter or buffer that is in the graph -> the ops that stand for it or read it."""
    found: dict[str, list[int]] = {}
    for op, (name, kind, others) in enumerate(zip(graph.op_names, graph.op_types, graph.module_tensors, strict=True)):
        for tensor in (name, *others) if kind in TENSORS else others:
            found.setdefault(tensor, []).append(op)
    return found


def numbered(graph: ComputationGraph, of_path: dict[str, str]) -> tuple[tuple[str, ...], np.ndarray]:
    """Return the names of the units, and the unit of each op (N,) int64, which is -1 for an op without unit.

    Units are in the order of their first op that isn't a parameter or buffer.

    Args:
        graph: captured.
        of_path: path of a module -> its unit; all other modules, and the model itself, have none.
    """
    number: dict[str, int] = {}
    unit = np.full(graph.num_ops, -1, np.int64)
    order = graph.topological_order.tolist()
    for parameters in (False, True):
        for op in order:
            if graph.modules[op] in of_path and (graph.op_types[op] in TENSORS) is parameters:
                unit[op] = number.setdefault(of_path[graph.modules[op]], len(number))
    for name in of_path.values():
        number.setdefault(name, len(number))
    return tuple(number), unit
