"""``placeto simulate``: simulate a placement that was written to a file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from placeto.cli.common import GraphArgument, OptionalPath, check_output, describe, missing_memory, note, say
from placeto.placers import resolve_graph


@dataclass(frozen=True)
class Arguments:
    """Simulate a placement and say what it costs: makespan, load and memory of each device."""

    graph: GraphArgument
    """a file (.json, .json.gz) or family:split:index, e.g. cifar10:test:3"""
    placement: Path
    """a placement file, as `placeto place -o` writes it"""
    cluster: str
    """a name from `placeto list clusters`, or a cluster file"""
    trace: OptionalPath = None
    """write the schedule as a Chrome trace (.json, .json.gz), for https://ui.perfetto.dev"""
    plot: OptionalPath = None
    """draw the schedule to this .png, .svg or .pdf file"""


def run(arguments: Arguments) -> None:
    """Simulate, print, write what was asked for."""
    check_output("--trace", arguments.trace)
    check_output("--plot", arguments.plot)
    from placeto.formats.chrome_trace import save_chrome_trace
    from placeto.formats.placement import load_placement
    from placeto.problem.cluster_files import load_cluster
    from placeto.problem.problem import PlacementProblem
    from placeto.simulator.schedule import simulate

    if arguments.plot is not None:
        from placeto.formats.gantt import check_suffix

        check_suffix(arguments.plot)
    file = load_placement(arguments.placement)
    name, graph = resolve_graph(arguments.graph)
    problem = PlacementProblem(graph, load_cluster(arguments.cluster))
    cluster = problem.cluster
    schedule = simulate(problem, file.devices(graph, cluster))
    say(f"graph        {name}: {graph.num_ops} ops, {graph.num_edges} edges")
    say(f"cluster      {cluster.name}")
    say(describe(schedule))
    if file.makespan_us is not None and file.makespan_us != schedule.makespan_us:
        made_for = f" on cluster {file.cluster}" if file.cluster else ""
        note(f"{arguments.placement} says {file.makespan_us!r} us{made_for}, not {float(schedule.makespan_us)!r} us")
    if missing := missing_memory(schedule):
        note(f"{arguments.placement} doesn't fit in the memory of {cluster.name}: {missing} too much")
    if arguments.trace is not None:
        save_chrome_trace(schedule, arguments.trace)
    if arguments.plot is not None:
        from placeto.formats.gantt import gantt_figure, save_figure

        save_figure(gantt_figure(schedule, f"{name} on {cluster.name}"), arguments.plot)
