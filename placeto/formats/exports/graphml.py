"""A placed graph as GraphML: ops with device and times, for networkx, Gephi, yEd."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from pathlib import Path

import networkx as nx

from placeto.plumbing.terminal import printable
from placeto.problem.files import atomic_write
from placeto.simulator.schedule import Schedule


def save_graphml(schedule: Schedule, path: str | Path) -> None:
    """Write the ops of a schedule as nodes, and an edge for each op that reads a tensor of another op.

    A node has the op's type, module, device, and start and end in microseconds; an edge has the tensor's bytes.
    Control characters and marks of direction are spelled out, as in "\\x1b".

    Raises:
        OSError: the file can't be written.
    """
    problem = schedule.problem
    graph, devices = problem.graph, [printable(name) for name in problem.cluster.device_names]
    names = _unique(graph.op_names)
    drawing = nx.MultiDiGraph(name=printable(graph.name))
    for op, name in enumerate(names):
        drawing.add_node(
            name,
            type=printable(graph.op_types[op]),
            module=printable(graph.modules[op]),
            device=devices[schedule.placement[op]],
            start_us=float(schedule.start_us[op]),
            end_us=float(schedule.finish_us[op]),
        )
    sizes = graph.output_bytes[graph.edge_tensor]
    for src, dst, size in zip(graph.edge_src.tolist(), graph.edge_dst.tolist(), sizes.tolist(), strict=True):
        drawing.add_edge(names[src], names[dst], bytes=size)
    with atomic_write(path) as temporary:
        nx.write_graphml(drawing, temporary)


def _unique(names: Sequence[str]) -> list[str]:
    """Return the names of ops with what can't be printed spelled out; they still differ from each other."""
    taken, unique = set(names), []
    for name in names:
        text = printable(name)
        if text != name:
            text = next(new for number in count() if (new := f"{text}_{number}" if number else text) not in taken)
            taken.add(text)
        unique.append(text)
    return unique
