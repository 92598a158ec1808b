"""``placeto place``: find a device for each op of a model, so that a step is as short as possible."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field
from tyro.conf import arg

from placeto.cli.report import write_report
from placeto.cli.shared import options as opt
from placeto.cli.shared.common import describe, find_cluster, missing_memory, note, note_unmeasured, say
from placeto.cli.shared.device_bars import show_devices
from placeto.cli.shared.graphs import find_graph
from placeto.errors import UsageError
from placeto.placers import DEFAULT_PLACER, Placer, choose_placer, throughput_placer
from placeto.plumbing.progress import ProgressBar
from placeto.plumbing.terminal import table
from placeto.problem.units import format_bytes, format_rate, format_us
from placeto.simulator.evaluator import PlacementResult
from placeto.simulator.observer import Observer, Status, observing

if TYPE_CHECKING:
    from placeto.heuristics.throughput import StreamPlacement
    from placeto.problem.graph import ComputationGraph
    from placeto.problem.problem import PlacementProblem


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """Find a device for each op of one graph, so that a step takes as little simulated time as possible.

    Without --placer, a trained policy guides the search. Without a budget, the search takes 1,000 simulations.
    """

    graph: opt.GraphArgument
    cluster: opt.ClusterName
    dispatch: opt.DispatchName = None
    objective: Literal["makespan", "throughput"] = "makespan"
    """makespan: make one step short. throughput: make the greatest load of a device small, for a stream of samples"""
    placer: opt.OptionalText = None
    """a name from `placeto list placers`; if not given, that of the checkpoint, or placeto with its trained policy.
    With --objective throughput: free (the default) or contiguous"""
    budget: opt.Budget
    costs: opt.CostsName = "efficiency"
    seed: opt.Seed = 0
    workers: opt.OptionalCount = None
    """threads of the search, all cores if not given; with a budget of simulations the result doesn't depend on them"""
    whole_modules: bool = False
    """keep each block of the model on one device, as a device map needs it, and also the modules that a captured model
    says must not be split, as models of Hugging Face do"""
    whole: opt.Modules = ()
    """with --whole-modules, a module to keep on one device in addition to the blocks; may be given several times"""
    out: opt.OptionalJsonOut = None
    """write the placement to this .json file"""
    plot: opt.Plot = None
    curve: opt.OptionalPicture = None
    """draw the best makespan so far against simulations and seconds to this .png, .svg or .pdf file"""
    patience: Annotated[Annotated[float, Field(gt=0.0, lt=1.0)] | None, arg(metavar="FLOAT")] = None
    """end the search if the best makespan stays the same for this share of the budget, such as 0.3"""
    report: opt.OptionalPage = None
    """write a page on the placement to this .html file, as `placeto report` does"""
    options: opt.Captured


def run(arguments: Arguments) -> None:
    """Place, print a summary, write what was asked for."""
    from placeto.formats.placement import save_placement
    from placeto.heuristics import throughput
    from placeto.placing import place_problem, undivided_modules
    from placeto.planning.variants import Variants
    from placeto.planning.ways import place_or_plan
    from placeto.problem.costs import load_costs
    from placeto.problem.step.recomputation import recomputable
    from placeto.simulator.threads import set_threads

    budget = arguments.budget
    placer_name, placer = _find_placer(arguments)
    cluster = find_cluster(arguments.cluster, arguments.dispatch)
    if arguments.workers is not None:
        set_threads(1, arguments.workers)
    whole: bool | tuple[str, ...] = arguments.whole or arguments.whole_modules
    name, module = "", None

    def graph_of(count: int, samples: int, width: int) -> ComputationGraph:
        nonlocal name, module
        name, graph, module = find_graph(arguments.graph, replace(arguments.options, micro_batches=count))
        return graph

    def place_by(problem: PlacementProblem, simulations: int | None, seconds: float | None) -> PlacementResult:
        undivided = undivided_modules(module, whole, problem.graph)
        shown = _shown(name, problem.single_device_us, arguments.patience)
        return place_problem(problem, placer, simulations, seconds, arguments.seed, undivided, shown)

    variants, chosen = Variants(graph_of, cluster, load_costs(arguments.costs)), None
    if isinstance(count := arguments.options.micro_batches, int):
        result = place_by(variants(count), budget.simulations, budget.seconds)
    else:
        plans = placer_name == DEFAULT_PLACER and not whole
        chosen = place_or_plan(variants, place_by, plans, budget.simulations, budget.seconds)
        result = chosen.result
    problem = result.problem.under(cluster.dispatch)
    graph = problem.graph
    schedule = result.schedule()
    if arguments.out is not None:
        save_placement(result, arguments.out)
    if arguments.plot is not None:
        from placeto.formats.gantt import gantt_figure, save_figure

        save_figure(gantt_figure(schedule, f"{name} on {problem.cluster.name}, {placer_name}"), arguments.plot)
    if arguments.curve is not None:
        _draw_curve(result, f"{name} on {problem.cluster.name}", placer_name, arguments.curve)
    if isinstance(result, throughput.StreamPlacement):
        _describe_stream(name, result)
        if arguments.report is not None:
            write_report(schedule, problem, arguments.report, name, placer_name, result.whole_modules)
        return
    cluster = problem.cluster
    say(f"graph        {name}: {graph.num_ops} ops, {graph.num_edges} edges, {graph.mode}")
    say(f"cluster      {cluster.name}, dispatch {result.problem.dispatch if result.order is None else 'list'}")
    say(f"placer       {placer_name}: {result.simulations} simulations in {result.seconds:.2f} s")
    if chosen is not None:
        say(f"micro-batches {chosen.count}, the best of these after a third of the budget:")
        for count, first in chosen.first.items():
            much = "" if first.fits else ", does not fit into memory"
            say(f"  {count:>2}         {format_us(first.makespan_us)}{much}")
        for count, why in (variants.left_out | chosen.left_out).items():
            say(f"  {count:>2}         not tried: {why}")
        single_us = min(first.problem.single_device_us for first in chosen.first.values())
        share = f"{schedule.makespan_us / single_us:.4f} of the best single device"
        say(f"             {share} in any of these numbers of micro-batches")
        if chosen.way:
            say(f"way          {chosen.way}, which `placeto plan` tries where memory is short")
        note(f"give --micro-batches {chosen.count} where this placement is simulated, run or reported")
    say(describe(schedule))
    show_devices(schedule)
    if arguments.report is not None:
        write_report(schedule, problem, arguments.report, name, placer_name, result.whole_modules)
    note_unmeasured(result.problem)
    if missing := missing_memory(schedule):
        told = (
            f"{placer_name} found no placement of {name} that fits in the memory of {cluster.name}: {missing} too much"
        )
        more = chosen is None and recomputable(schedule.problem.graph)
        note(told + ("; `placeto plan` also recomputes blocks" if more else ""))


def _find_placer(arguments: Arguments) -> tuple[str, Placer]:
    if arguments.objective == "makespan":
        return choose_placer(arguments.placer, arguments.budget.checkpoint)
    if arguments.options.micro_batches != 1:
        raise UsageError("--objective throughput is for runs of a whole batch: leave --micro-batches at 1")
    why = "isn't for --objective throughput, which searches for --seconds, 10 by default"
    opt.refuse(arguments.budget, ("checkpoint", "simulations"), why)
    opt.refuse(arguments, ("patience", "curve"), why)
    return throughput_placer(arguments.placer)


def _describe_stream(name: str, result: StreamPlacement) -> None:
    """Print the greatest load, the rate, whether it is the optimum, and the load and memory of each device."""
    problem = result.problem
    graph, cluster = problem.graph, problem.cluster
    kind = "contiguous split" if result.placer == "contiguous" else "split"
    greatest = cluster.device_names[int(result.loads_us.argmax())]
    single_us = float(problem.busy_us.sum(axis=0).min())
    say(f"graph        {name}: {graph.num_ops} ops, {graph.num_edges} edges, {graph.mode}")
    say(f"cluster      {cluster.name}")
    say(f"objective    throughput, {result.placer} splits, in {result.seconds:.2f} s")
    say(f"greatest load {format_us(result.greatest_us)} ({result.greatest_us:.3f} us) of {greatest}")
    rate = format_rate(1e6 / result.greatest_us) if result.greatest_us > 0 else "any number of"
    what = "steps" if graph.mode == "training" else "batches"
    say(f"             {rate} {what}/s in steady state, each a run of the graph")
    if single_us > 0:
        say(f"             {result.greatest_us / single_us:.4f} of the work on the best single device")
    if result.optimal:
        say(f"optimal      yes: no {kind} has less")
    else:
        say(f"optimal      not proven: no {kind} has less than {format_us(result.bound_us)}")
    if result.placer == "free" and result.contiguous_us < float("inf"):
        say(f"contiguous   {format_us(result.contiguous_us)} ({result.contiguous_us:.3f} us), the best that was found")
    rows = [["device", "ops", "load", "memory"]]
    counts = [int((result.placement == device).sum()) for device in range(cluster.num_devices)]
    for device, count, load_us, held in zip(
        cluster.devices, counts, result.loads_us.tolist(), result.held.tolist(), strict=True
    ):
        memory = f"{format_bytes(held)} of {format_bytes(device.memory)}"
        rows.append([device.name, f"{count}", format_us(load_us), memory])
    say(table(rows, numbers=True))


@contextmanager
def _shown(name: str, single_us: float, patience: float | None) -> Iterator[None]:
    """Within it, a terminal shows the best makespan so far and what the placer does; `patience` may end the placer."""
    with ExitStack() as stack:
        report = None
        if sys.stderr.isatty():
            bar = stack.enter_context(ProgressBar(f"placing {name}", total=1.0))
            report = partial(_show, bar, single_us)
        stack.enter_context(observing(Observer(report, patience)))
        yield


def _show(bar: ProgressBar, single_us: float, status: Status) -> None:
    words = f"{status.stage}: {format_us(status.best_us)}, {status.best_us / single_us:.3f} of one device"
    if status.heuristic_us < math.inf:
        words += f", {100.0 * (1.0 - status.best_us / status.heuristic_us):.1f} % below the best heuristic"
    bar.update(status.share, words if status.best_us < math.inf else status.stage)


def _draw_curve(result: PlacementResult, title: str, placer: str, path: Path) -> None:
    from placeto.evaluation.figures import curve_figure
    from placeto.formats.gantt import save_figure

    single_us = result.problem.single_device_us
    points = [*result.history, (result.simulations, result.seconds, result.makespan_us)]
    by_count = [(float(max(count, 1)), us / single_us) for count, _, us in points]
    by_time = [(max(seconds, 1e-3), us / single_us) for _, seconds, us in points]
    save_figure(curve_figure({placer: by_count}, {placer: by_time}, title), path)
