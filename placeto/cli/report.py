"""``placeto report``: write a page for a browser that explains a placement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tyro.conf import arg

from placeto.cli.shared.common import find_cluster, note, note_memory, say
from placeto.cli.shared.graphs import as_planned, find_graph
from placeto.cli.shared.options import (
    Captured,
    ClusterName,
    CostsName,
    FileDispatchName,
    GraphArgument,
    Names,
    PagePath,
)
from placeto.placers import Placer, keeping_modules, load_placer
from placeto.problem.units import format_us

if TYPE_CHECKING:
    from placeto.formats.placement import PlacementFile
    from placeto.problem.graph import ComputationGraph
    from placeto.problem.problem import PlacementProblem
    from placeto.problem.step.plan import Plan
    from placeto.simulator.schedule import Schedule

AGAINST = ("single", "expert", "metis", "heft", "etf")


@dataclass(frozen=True, kw_only=True)
class PlacedArguments:
    """A placement file, and what it is simulated with."""

    graph: GraphArgument
    placement: Path
    """a file of a placement, as `placeto place -o` and `placeto plan -o` write it"""
    cluster: ClusterName
    dispatch: FileDispatchName = None
    costs: CostsName = "efficiency"
    options: Captured


@dataclass(frozen=True, kw_only=True)
class Arguments(PlacedArguments):
    """Write a page that explains a placement: what is where, what takes the time, schedule, memory and transfers.

    For a step in micro-batches the page also shows the stages and micro-batches as a grid. The page is one .html file
    for a browser, and needs no network.
    """

    out: Annotated[PagePath, arg(aliases=["-o"], metavar="PATH")]
    """write the page to this .html file"""
    against: Names = AGAINST
    """placers to compare the placement with, such as single,etf; none leaves this out. If the placement was made with
    --whole-modules, they also place whole modules"""


def run(arguments: Arguments) -> None:
    """Simulate the placement, place with the others, write the page."""
    others = rivals(arguments.against)
    from placeto.problem.costs import load_costs
    from placeto.problem.costs.group_costs import in_groups
    from placeto.problem.problem import PlacementProblem

    name, file, schedule = simulate_file(arguments)
    cluster = find_cluster(arguments.cluster, arguments.dispatch)
    groups = in_groups(cluster, load_costs(arguments.costs), schedule.problem.width)
    free = PlacementProblem(schedule.problem.graph, *groups)
    write_report(schedule, free, arguments.out, name, file.placer, file.whole_modules, others)
    note_memory(str(arguments.placement), schedule)


def simulate_file(arguments: PlacedArguments) -> tuple[str, PlacementFile, Schedule]:
    """Return the graph's name, a placement file, and its schedule, in the file's order unless a dispatch is given."""
    from placeto.errors import PlacementError
    from placeto.formats.placement import load_placement
    from placeto.problem.costs import load_costs
    from placeto.problem.costs.group_costs import in_groups
    from placeto.problem.messages import within
    from placeto.problem.problem import PlacementProblem
    from placeto.problem.step.plan import check_plan_of
    from placeto.simulator.schedule import simulate

    file = load_placement(arguments.placement)
    cluster, costs = find_cluster(arguments.cluster, arguments.dispatch or file.dispatch), load_costs(arguments.costs)
    options = as_planned(arguments.placement, arguments.graph, find_cluster(arguments.cluster), arguments.options)
    cluster, costs = in_groups(cluster, costs, file.width)
    name, graph, _ = find_graph(arguments.graph, options, file.width)
    with within(PlacementError, arguments.placement):
        graph = file.step(graph)
        placement, order = file.devices(graph, cluster), file.op_order(graph)
        problem, plan = PlacementProblem(graph, cluster, costs), file.plan_on(cluster)
        if plan is not None:
            check_plan_of(plan, problem, placement)
    kept = file.dispatch == "list" and arguments.dispatch is None
    return name, file, simulate(problem, placement, order=order if kept else None, plan=plan)


def note_other_time(path: Path, schedule: Schedule, simulated_us: float, *shown_us: float) -> None:
    """Say why the step of a file takes another time in the program that torchrun runs, where it does.

    Args:
        path: the file of the placement or plan.
        schedule: the schedule of the file.
        simulated_us: simulated time of the step as torchrun runs it.
        shown_us: other times that the user sees.
    """
    from placeto.formats.placement import load_placement
    from placeto.formats.plan import load_plan

    file, plan, costs = load_placement(path), load_plan(path), schedule.problem.costs.name
    file_us = file.makespan_us if plan is None else plan.step_us
    if file_us is None or format_us(file_us) in map(format_us, (simulated_us, *shown_us)):
        return
    how = "op by op" if plan is None else f"for {plan.kind} as {plan.run_by} runs it"
    note(
        f"{path} says {format_us(file_us)}, {how}, by the costs {file.costs or costs}; torchrun runs it in whole "
        f"chunks, then adds up gradients, which takes {format_us(simulated_us)} simulated, by the costs {costs}"
    )


def note_of_memory(step: Schedule, plan: Plan, graph: ComputationGraph) -> None:
    """Say where the step of a pipeline, as torch runs it, needs more memory than there is, or than is simulated.

    Args:
        step: the schedule of the step as torch runs it.
        plan: the plan of the pipeline.
        graph: the captured step, with what the plan recomputes.
    """
    from placeto.problem.step.recomputation import RECOMPUTATION, block_of

    note_memory("as torch runs it, it", step)
    planned = block_of(graph, plan.recomputed) >= 0
    if any(part == RECOMPUTATION and not planned[op] for op, part in enumerate(graph.passes)):
        note("torch traces the model without its activation checkpoints: it takes more memory, and less time")


def rivals(names: Sequence[str]) -> dict[str, Placer]:
    """Return the placers that a placement is compared with; "none" means no placer.

    Raises:
        PlacerError: there is no placer of such a name.
    """
    return {} if tuple(names) == ("none",) else {name: load_placer(name) for name in names}


def write_report(
    schedule: Schedule,
    problem: PlacementProblem,
    path: Path,
    name: str,
    placer: str | None,
    whole: Sequence[str] | None,
    against: Mapping[str, Placer] | None = None,
) -> None:
    """Place the problem with the other placers too, and write the page on the schedule.

    If `whole` isn't None, the placement was made in whole modules, and the other placers keep them whole as well.
    """
    from placeto.formats.report import report_page
    from placeto.problem.files import write_text
    from placeto.problem.units import format_bytes

    others = rivals(AGAINST) if against is None else against
    if whole is not None:
        others = {other: keeping_modules(place, tuple(whole)) for other, place in others.items()}
    placed = {other: place(problem, seed=0) for other, place in others.items() if other != placer}
    write_text(report_page(schedule, name, placer or "", placed, whole is not None), path)
    say(f"report       {path} ({format_bytes(path.stat().st_size)})")
