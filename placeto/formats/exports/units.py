"""The modules of a graph, for exports that name them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from placeto.problem.graph import ComputationGraph
from placeto.problem.graph.module_paths import LOSS, inside
from placeto.problem.step.borders import no_modules


class ExportError(ValueError):
    """A graph or placement that can't be exported to a format; the message says why."""


def paths_of(graph: ComputationGraph, whole: Sequence[str] = (), tensors: Iterable[str] = ()) -> list[str]:
    """Return the paths of the modules that compute or have parameters or buffers, without the model itself.

    Args:
        graph: captured, so that its ops have modules.
        whole: paths of modules that are to stay whole.
        tensors: names of parameters and buffers, of modules that may compute nothing.

    Raises:
        ExportError: the graph has no modules, or lacks one that is to stay whole.
    """
    owners = [name.rpartition(".")[0] for name in tensors]
    paths = [path for path in dict.fromkeys((*graph.modules, *owners)) if path and (path != LOSS or path in owners)]
    if not paths:
        raise ExportError(f"{graph.name}: {no_modules(graph)}")
    for path in whole:
        if not any(inside(other, path) for other in paths):
            raise ExportError(f"{graph.name} has no module {path!r}; there are {', '.join(paths[:8])}, ...")
    return paths
