"""``placeto simulate``: simulate a placement: time of a step, load and memory of each device."""

from __future__ import annotations

from dataclasses import dataclass

from placeto.cli.report import PlacedArguments, simulate_file
from placeto.cli.shared.common import describe, note, note_memory, say
from placeto.cli.shared.device_bars import show_devices
from placeto.cli.shared.options import OptionalJson, Plot


@dataclass(frozen=True, kw_only=True)
class Arguments(PlacedArguments):
    """Simulate a placement and say what it costs: makespan, load and memory of each device."""

    trace: OptionalJson = None
    """write the schedule as a Chrome trace (.json, .json.gz), for https://ui.perfetto.dev"""
    plot: Plot = None


def run(arguments: Arguments) -> None:
    """Simulate the placement, print what it costs, and write the files that were asked for."""
    from placeto.evaluation.summary import ratio
    from placeto.formats.chrome_trace import save_chrome_trace
    from placeto.problem.cluster import DISPATCHES
    from placeto.problem.graph.label_values import NO_MICRO_BATCH
    from placeto.problem.problem import PlacementProblem
    from placeto.problem.units import format_us
    from placeto.simulator.schedule import simulate

    names = {
        "fifo": "first ready first served (fifo)",
        "list": "in program order (list)",
        "priority": "longest remaining path first (priority)",
        "earlier-0.02": "earlier micro-batches first (earlier-0.02)",
        "earlier-0.05": "earlier micro-batches first (earlier-0.05)",
        "earlier-0.2": "earlier micro-batches first (earlier-0.2)",
        "1f1b": "a forward, a backward pass (1f1b)",
    }
    name, file, schedule = simulate_file(arguments)
    problem, placement = schedule.problem, schedule.placement
    graph, cluster, costs, file_order = problem.graph, problem.cluster, problem.costs, file.op_order(problem.graph)
    kept = file_order is not None and file.dispatch == "list" and arguments.dispatch is None
    say(f"graph        {name}: {graph.num_ops} ops, {graph.num_edges} edges, {graph.mode}")
    say(f"cluster      {cluster.name}, dispatch {problem.dispatch}{', the order of the file' if kept else ''}")
    if schedule.plan is not None:
        say(f"plan         {schedule.plan.line(cluster)}")
    say(describe(schedule))
    show_devices(schedule)
    in_micro_batches = bool((graph.micro_batches != NO_MICRO_BATCH).any())
    others = {
        names[dispatch]: simulate(PlacementProblem(graph, cluster, costs, dispatch), placement)
        for dispatch in DISPATCHES
        if (kept or dispatch != problem.dispatch) and (dispatch in ("fifo", "list", "priority") or in_micro_batches)
    }
    if file_order is not None and not kept:
        others["in the order of the file"] = simulate(problem, placement, order=file_order)
    for how, other in others.items():
        factor = ratio(other.makespan_us, schedule.makespan_us)
        say(f"{how:<40} {format_us(other.makespan_us):>10}, {factor:.3f} times that")
    if file.makespan_us is not None and file.makespan_us != schedule.makespan_us:
        made_for = f" on cluster {file.cluster}" if file.cluster else ""
        by = f" by costs {file.costs}" if file.costs and file.costs != costs.name else ""
        here = f"{float(schedule.makespan_us)!r} us{f' by {costs.name}' if by else ''}"
        note(f"{arguments.placement} says {file.makespan_us!r} us{made_for}{by}, not {here}")
    note_memory(str(arguments.placement), schedule)
    if arguments.trace is not None:
        save_chrome_trace(schedule, arguments.trace)
    if arguments.plot is not None:
        from placeto.formats.gantt import gantt_figure, save_figure

        save_figure(gantt_figure(schedule, f"{name} on {cluster.name}"), arguments.plot)
