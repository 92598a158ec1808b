"""``placeto compare``: one graph on several clusters, and whether to place it at all."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from tyro.conf import arg

from placeto.cli.common import (
    Budget,
    BudgetOptions,
    CostsText,
    OptionalPath,
    OptionalText,
    OutputPath,
    check_output,
    check_picture,
    check_whole,
    find_clusters,
    say,
)
from placeto.cli.graphs import Captured, CaptureOptions, GraphArgument, find_graph
from placeto.placers import choose_placer, warm_up


@dataclass(frozen=True)
class Arguments:
    """Place one graph on several clusters and compare them, and each placement with data parallelism.

    In data parallelism each device has a replica of the model and runs the graph's whole batch, so that a step
    processes as many batches as there are devices. In training a ring all-reduce sums the gradients. Two step times are
    given: if the all-reduce runs wholly during the backward pass, and if it runs after it. Samples a second are given
    as a multiple of those of the placement.
    """

    graph: GraphArgument
    clusters: Annotated[str, arg(aliases=["--cluster"], metavar="NAMES")]
    """clusters to compare: names from `placeto list clusters` and cluster files, such as 2xv100,8xh100,mine.json"""
    placer: OptionalText = None
    """a name from `placeto list placers`; if not given, that of the checkpoint, or placeto with its trained policy"""
    budget: Budget = field(default_factory=BudgetOptions)
    costs: CostsText = "efficiency"
    """how long ops take: efficiency, roofline, or a file of costs"""
    whole_modules: bool = False
    """keep each block of the model on one device, as a device map needs it"""
    seed: int = 0
    """seed of the placer's random choices"""
    output: OutputPath = None
    """write the table to this .json file"""
    plot: OptionalPath = None
    """draw the comparison to this .png, .svg or .pdf file"""
    options: Captured = field(default_factory=CaptureOptions)


def run(arguments: Arguments) -> None:
    """Place on each cluster, print a table and a sentence for each, write what was asked for."""
    check_output("--out", arguments.output, json=True)
    check_picture("--plot", arguments.plot)
    arguments.budget.check()
    check_whole("--seed", arguments.seed)
    names = list(dict.fromkeys(name.strip() for name in arguments.clusters.split(",") if name.strip()))
    from placeto.evaluation.machines import machine_table, place_on, save_machines
    from placeto.problem.costs import load_costs
    from placeto.problem.problem import PlacementProblem

    clusters, costs, budget = find_clusters("--clusters", names, None), load_costs(arguments.costs), arguments.budget
    _, placer = choose_placer(arguments.placer, budget.checkpoint)
    name, graph, _ = find_graph(arguments.graph, arguments.options)
    if arguments.whole_modules:
        from placeto.problem.step.whole_modules import whole_modules

        graph = whole_modules(graph)
    problems = [PlacementProblem(graph, cluster, costs) for cluster in clusters]
    machines = []
    for problem in problems:
        warm_up(placer, problem, budget.simulations, budget.seconds)
        machines.append(place_on(problem, placer, budget.simulations, budget.seconds, arguments.seed))
    say(f"graph {name}: {graph.num_ops} ops, {graph.mode}")
    say(machine_table(machines))
    for machine in machines:
        say(f"{machine.name}: {machine.advice}")
    if arguments.output is not None:
        save_machines(machines, name, arguments.output)
    if arguments.plot is not None:
        from placeto.evaluation.figures import machine_figure
        from placeto.formats.gantt import save_figure

        save_figure(machine_figure(machines, name), arguments.plot)
