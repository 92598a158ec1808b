"""``placeto compare``: the best way to run one model on each of several clusters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from tyro.conf import arg

from placeto.cli.shared import options as opt
from placeto.cli.shared.common import find_clusters, note_unmeasured, say, say_left_out
from placeto.cli.shared.compared import Compared
from placeto.plumbing.progress import ProgressBar


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """Say for each of several clusters which way to run a model is best there, what a step takes, and what it costs.

    The ways are those that `placeto plan` tries, for a training step of a FACTORY or a CONFIG. A graph file, a graph of
    a family, an ONNX file, and a step that is captured with --inference, --run or --optimizer-step are a fixed step,
    which isn't split further. Its ways are one device, whole modules, a free placement of single ops, and, if it is in
    micro-batches already, data parallelism and pipelines. If it isn't, a sentence says how many samples a second a
    replica on each device would process, each with a batch of its own.
    """

    clusters: Annotated[opt.Names, arg(aliases=["--cluster"])]
    """clusters to compare: names from `placeto list clusters` and cluster files, such as 2xv100,8xh100,mine.json"""
    simulations: opt.Whole = 300
    """budget of the search for a free placement on each cluster; 0 leaves the free placement out"""
    costs: opt.CostsName = "efficiency"
    seed: opt.Seed = 0
    out: opt.OptionalJsonOut = None
    """write the table to this .json file"""
    plot: opt.OptionalPicture = None
    """draw the comparison to this .png, .svg or .pdf file"""
    model: Compared


def run(arguments: Arguments) -> None:
    """Plan on each cluster, print a table and what to do on each, write what was asked for."""
    from placeto.planning.machines import machine_table, plan_on_each, save_machines, verdict
    from placeto.problem.costs import load_costs

    options, costs = arguments.model, load_costs(arguments.costs)
    clusters = find_clusters("--clusters", tuple(dict.fromkeys(arguments.clusters)))
    with ProgressBar("planning", total=len(clusters) * (len(options.counts) + 1)) as bar:
        step = options.found(bar)
        more = arguments.simulations, arguments.seed, options.headroom
        machines = plan_on_each(clusters, costs, step.graph_of, step.batch, step.grouped, step.counts, *more)
        bar.update(bar.total)
    say(f"{step.name}: {step.what}")
    say(machine_table(machines))
    say_left_out({count: why for machine in machines for count, why in machine.plans.left_out.items()})
    for machine in machines:
        say(f"{machine.cluster.name}: {machine.advice}")
        note_unmeasured(machine.best.schedule.problem)
    if said := verdict(machines):
        say(said)
    if arguments.out is not None:
        save_machines(machines, step.name, arguments.out)
    if arguments.plot is not None:
        from placeto.evaluation.figures import machine_figure
        from placeto.formats.gantt import save_figure

        save_figure(machine_figure(machines, step.name), arguments.plot)
