"""``placeto compare``: place one model on several clusters, and compare with data parallelism."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from tyro.conf import arg

from placeto.cli.shared import options as opt
from placeto.cli.shared.common import find_clusters, say
from placeto.cli.shared.graphs import find_graph
from placeto.placers import choose_placer, warm_up


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """Place one graph on several clusters and compare them, and each placement with data parallelism.

    In data parallelism each device has a replica of the model and runs the graph's whole batch, so that a step
    processes as many batches as there are devices. In training a ring all-reduce sums the gradients. Two step times are
    given: if the all-reduce runs wholly during the backward pass, and if it runs after it. Samples a second are given
    as a multiple of those of the placement.
    """

    graph: opt.GraphArgument
    clusters: Annotated[opt.Names, arg(aliases=["--cluster"])]
    """clusters to compare: names from `placeto list clusters` and cluster files, such as 2xv100,8xh100,mine.json"""
    placer: opt.PlacerName = None
    budget: opt.Budget
    costs: opt.CostsName = "efficiency"
    whole_modules: opt.WholeModules = False
    seed: opt.Seed = 0
    out: opt.OptionalJsonOut = None
    """write the table to this .json file"""
    plot: opt.OptionalPicture = None
    """draw the comparison to this .png, .svg or .pdf file"""
    options: opt.Captured


def run(arguments: Arguments) -> None:
    """Place on each cluster, print a table and a sentence for each, write what was asked for."""
    from placeto.evaluation.machines import machine_table, place_on, save_machines
    from placeto.placing import with_undivided
    from placeto.problem.costs import load_costs
    from placeto.problem.problem import PlacementProblem

    clusters = find_clusters("--clusters", tuple(dict.fromkeys(arguments.clusters)))
    costs, budget = load_costs(arguments.costs), arguments.budget
    _, placer = choose_placer(arguments.placer, budget.checkpoint)
    name, graph, _ = find_graph(arguments.graph, arguments.options)
    undivided = () if arguments.whole_modules else None
    problems = [with_undivided(PlacementProblem(graph, cluster, costs), undivided) for cluster in clusters]
    machines = []
    for problem in problems:
        warm_up(placer, problem, budget.simulations, budget.seconds)
        machines.append(place_on(problem, placer, budget.simulations, budget.seconds, arguments.seed))
    say(f"graph {name}: {graph.num_ops} ops, {graph.mode}")
    say(machine_table(machines))
    for machine in machines:
        say(f"{machine.name}: {machine.advice}")
    if arguments.out is not None:
        save_machines(machines, name, arguments.out)
    if arguments.plot is not None:
        from placeto.evaluation.figures import machine_figure
        from placeto.formats.gantt import save_figure

        save_figure(machine_figure(machines, name), arguments.plot)
