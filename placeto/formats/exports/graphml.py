"""A placed graph as GraphML: ops with device and times, for networkx, Gephi, yEd."""

from __future__ import annotations

from pathlib import Path

import networkx as nx

from placeto.simulator.schedule import Schedule


def save_graphml(schedule: Schedule, path: str | Path) -> None:
    """Write the ops and tensors of a schedule: device, start and end in us, type, module; bytes.

    Raises:
        OSError: the file can't be written.
    """
    problem = schedule.problem
    graph, names = problem.graph, problem.cluster.device_names
    made = nx.MultiDiGraph(name=graph.name)
    for op, name in enumerate(graph.op_names):
        made.add_node(
            name,
            type=graph.op_types[op],
            module=graph.modules[op],
            device=names[schedule.placement[op]],
            start_us=float(schedule.start_us[op]),
            end_us=float(schedule.finish_us[op]),
        )
    sizes = graph.output_bytes[graph.edge_tensor]
    for src, dst, size in zip(graph.edge_src.tolist(), graph.edge_dst.tolist(), sizes.tolist(), strict=True):
        made.add_edge(graph.op_names[src], graph.op_names[dst], bytes=size)
    nx.write_graphml(made, path)
