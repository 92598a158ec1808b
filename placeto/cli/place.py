"""``placeto place``: place one graph on a cluster."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from placeto.cli.common import (
    Budget,
    BudgetOptions,
    CostsText,
    DispatchOption,
    GraphArgument,
    OptionalInt,
    OptionalPath,
    OptionalText,
    OutputPath,
    UsageError,
    check_output,
    describe,
    find_cluster,
    missing_memory,
    note,
    say,
)
from placeto.cli.report import check_page, write_report
from placeto.placers import choose_placer, resolve_graph


@dataclass(frozen=True)
class Arguments:
    """Place one graph on a cluster: by search that a trained policy guides, or by any other placer.

    Without a budget that search takes 1,000 simulations.
    """

    graph: GraphArgument
    """a file (.json, .json.gz) or family:split:index, e.g. cifar10:test:3"""
    cluster: str
    """a name from `placeto list clusters`, or a cluster file"""
    dispatch: DispatchOption = None
    """which of its ready ops a device runs next: fifo, priority or list (program order); the cluster's if not given"""
    placer: OptionalText = None
    """a name from `placeto list placers`; the checkpoint's if not given, or placeto, which comes trained"""
    budget: Budget = field(default_factory=BudgetOptions)
    costs: CostsText = "efficiency"
    """how long ops take: efficiency, roofline, or a file of costs"""
    seed: int = 0
    """of the placer's random choices"""
    workers: OptionalInt = None
    """threads of the search, of which the answer to a number of simulations doesn't depend; all cores if not given"""
    whole_modules: bool = False
    """keep each block of the model on one device, as a device map needs it"""
    output: OutputPath = None
    """write the placement to this .json file"""
    plot: OptionalPath = None
    """draw the schedule to this .png, .svg or .pdf file"""
    report: OptionalPath = None
    """write a page on the placement to this .html file, as `placeto report` does"""


def run(arguments: Arguments) -> None:
    """Place, print a summary, write what was asked for."""
    check_output("--out", arguments.output)
    check_output("--plot", arguments.plot)
    check_page("--report", arguments.report)
    arguments.budget.check()
    if arguments.plot is not None:
        from placeto.formats.gantt import check_suffix

        check_suffix(arguments.plot)
    from placeto.evaluation.comparison import warm_up
    from placeto.formats.placement import save_placement
    from placeto.problem.costs import load_costs
    from placeto.problem.problem import PlacementProblem
    from placeto.simulator.threads import set_threads

    budget = arguments.budget
    placer_name, placer = choose_placer(arguments.placer, budget.checkpoint)
    name, graph = resolve_graph(arguments.graph)
    cluster = find_cluster(arguments.cluster, arguments.dispatch)
    problem = PlacementProblem(graph, cluster, load_costs(arguments.costs))
    if arguments.seed < 0:
        raise UsageError(f"--seed must be at least 0, not {arguments.seed}")
    if arguments.workers is not None:
        if arguments.workers < 1:
            raise UsageError(f"--workers must be at least 1, not {arguments.workers}")
        set_threads(1, arguments.workers)
    if budget.seconds is not None:
        warm_up(placer, problem.cluster, budget.simulations, budget.seconds)
    given = problem
    if arguments.whole_modules:
        from placeto.formats.exports import whole_modules

        given = PlacementProblem(whole_modules(graph), cluster, problem.costs)
    result = placer(given, simulations=budget.simulations, seconds=budget.seconds, seed=arguments.seed)
    result = replace(result, problem=problem)
    schedule = result.schedule()
    if arguments.output is not None:
        save_placement(result, arguments.output)
    if arguments.plot is not None:
        from placeto.formats.gantt import gantt_figure, save_figure

        save_figure(gantt_figure(schedule, f"{name} on {problem.cluster.name}, {placer_name}"), arguments.plot)
    cluster = problem.cluster
    say(f"graph        {name}: {graph.num_ops} ops, {graph.num_edges} edges")
    say(f"cluster      {cluster.name}, dispatch {problem.dispatch if result.order is None else 'list'}")
    say(f"placer       {placer_name}: {result.simulations} simulations in {result.seconds:.2f} s")
    say(describe(schedule))
    if arguments.report is not None:
        write_report(schedule, problem, arguments.report, name, placer_name)
    if missing := missing_memory(schedule):
        note(
            f"{placer_name} found no placement of {name} that fits in the memory of {cluster.name}: {missing} too much"
        )
