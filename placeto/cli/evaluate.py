"""``placeto evaluate``: compare placers on many graphs at equal budgets."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from placeto.cli.shared import options as opt
from placeto.cli.shared.common import find_clusters, note, say
from placeto.cli.shared.graphs import find_graph, is_factory
from placeto.errors import UsageError
from placeto.placers import load_split
from placeto.plumbing.progress import ProgressBar
from placeto.problem.costs import load_costs
from placeto.problem.files import locked, write_text
from placeto.problem.graph import ComputationGraph

if TYPE_CHECKING:
    from placeto.evaluation.comparison import PlacerSpec
    from placeto.evaluation.summary import Row


_TITLE = 130  # characters of a line above the curves


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """Compare placers on many graphs: a table on stdout, the rows in a file.

    A placer is NAME, NAME@SIMULATIONS for a budget of its own, NAME@pass for one pass of a learned placer, or
    LABEL=CHECKPOINT. The name of a learned placer means the one in --checkpoint. After an interruption, give the same
    command again: rows that the file already has are kept.
    """

    cluster: opt.Names
    """a name from `placeto list clusters`, or a cluster file; or several, comma-separated, each with its own table"""
    placers: opt.Names
    """placers to compare, comma-separated, such as placeto,etf,anneal"""
    dispatch: opt.DispatchName = None
    graphs: opt.GraphArguments = ()
    """files, family:split:index, or file.py:function of models to capture, in addition to those of --family"""
    family: opt.OptionalText = None
    """a graph family, whose --split is evaluated"""
    split: str = "test"
    """split of the family: train, validation or test"""
    count: opt.OptionalCount = None
    """how many graphs of the split to take, from the first on; all if not given"""
    budget: opt.Budget
    costs: opt.CostsName = "efficiency"
    whole_modules: opt.WholeModules = False
    seeds: opt.Counted = 1
    """how many seeds (0, 1, ...) each placer runs with"""
    processes: opt.OptionalCount = None
    """how many processes to use, with one thread each; as many as cores if not given"""
    out: opt.OptionalJsonOut = None
    """write the rows to this .json file, and the table to an .md file of the same name"""
    curve: opt.OptionalPicture = None
    """draw makespan against simulations and seconds to this .png, .svg or .pdf file"""
    options: opt.Captured


def run(arguments: Arguments) -> None:
    """Evaluate, print the tables, write what was asked for."""
    if arguments.family is None and not arguments.graphs:
        raise UsageError("nothing to evaluate: give graphs (files or family:split:index) or --family NAME")
    if arguments.family is None:
        opt.refuse(arguments, ("count", "split"), "is for the graphs of a --family; leave it out, or give one")
    from placeto.evaluation.comparison import evaluate, parse_spec
    from placeto.evaluation.seen import seen_before
    from placeto.evaluation.summary import markdown_table, summarize

    clusters, budget = find_clusters("--cluster", arguments.cluster, arguments.dispatch), arguments.budget
    costs = load_costs(arguments.costs)
    graphs = _graphs(arguments)
    _check_placers(arguments.placers, budget.checkpoint)
    specs = [parse_spec(name, budget.checkpoint, budget.simulations, budget.seconds) for name in arguments.placers]
    if not specs:
        raise UsageError("--placers names no placer; see `placeto list placers`")
    total = len(clusters) * len(graphs) * len(specs) * arguments.seeds
    for sentence in seen_before(specs, graphs):
        note(sentence)
    rows: list[Row] = []
    own_file = locked(arguments.out) if arguments.out is not None else nullcontext()  # for all clusters together
    with own_file, ProgressBar("evaluating", total=total) as bar:
        for cluster in clusters:
            rows += evaluate(
                graphs,
                cluster,
                specs,
                range(arguments.seeds),
                costs=costs,
                out=arguments.out,
                processes=arguments.processes,
                history=arguments.curve is not None,
                report=bar.after(len(rows)),
                whole_modules=arguments.whole_modules,
            )
    budgets_and_seeds, counted = f"{_budgets(specs)}, {_count(arguments.seeds, 'seed')}", _count(len(graphs), "graph")
    tables = [
        f"{counted} on {cluster.name}, dispatch {cluster.dispatch}, {budgets_and_seeds}\n\n"
        f"{markdown_table(summarize([row for row in rows if row['cluster'] == cluster.name]))}\n"
        f"{_without_ratio([row for row in rows if row['cluster'] == cluster.name])}"
        for cluster in clusters
    ]
    say("\n".join(tables))
    if arguments.out is not None:
        markdown = arguments.out.with_name(arguments.out.name.removesuffix(".gz")).with_suffix(".md")
        write_text("\n".join(tables), markdown)
        print(f"wrote {arguments.out} and {markdown}", file=sys.stderr)
    if arguments.curve is not None:
        from placeto.evaluation.figures import curve_figure
        from placeto.evaluation.summary import fits_one_device, mean_curves
        from placeto.formats.gantt import save_figure

        if not any(map(fits_one_device, rows)):
            note(f"{arguments.curve} is not drawn: its makespans are relative to one device, and none holds a graph")
            return

        on = ", ".join(cluster.name for cluster in clusters)
        title = f"{counted} on {on}, {budgets_and_seeds}"
        curves = [mean_curves(rows, against) for against in ("simulations", "seconds")]
        save_figure(curve_figure(curves[0], curves[1], textwrap.fill(title, _TITLE)), arguments.curve)


def _check_placers(names: Sequence[str], checkpoint: Path | None) -> None:
    """Refuse a budget in the label of a placer, and a checkpoint that no placer uses."""
    for name in names:
        label, equals, placer = name.partition("=")
        if equals and "@" in label:
            behind = f"{label.partition('@')[0]}={placer}@{label.partition('@')[2]}"
            raise UsageError(f"--placers {name}: the budget belongs behind the placer; write {behind}")
    if checkpoint is None:
        return
    from placeto.placers import choose_placer

    held = choose_placer(None, checkpoint)[0]
    if held not in {name.rpartition("=")[2].partition("@")[0].strip() for name in names}:
        raise UsageError(
            f"--checkpoint {checkpoint}: holds the placer {held!r}, which --placers doesn't name; add it there, or "
            "leave out --checkpoint"
        )


def _without_ratio(rows: Sequence[Row]) -> str:
    """Return a line on the graphs of a table that no single device holds; empty if there are none."""
    from placeto.evaluation.summary import fits_one_device

    graphs = {row["graph"] for row in rows}
    without = {row["graph"] for row in rows if not fits_one_device(row)}
    if not without:
        return ""
    count = f"{len(without)} of {_count(len(graphs), 'graph')}"
    return f"\nNo single device holds {count}: '/ one device' and 'worst' are of the others.\n"


def _graphs(arguments: Arguments) -> dict[str, ComputationGraph]:
    split = load_split(arguments.family, arguments.split, arguments.count) if arguments.family is not None else {}
    captured = any(is_factory(argument) or argument.endswith(".onnx") for argument in arguments.graphs)
    for argument in arguments.graphs:
        own = is_factory(argument) or argument.endswith(".onnx") or not captured
        name, graph, _ = find_graph(argument, arguments.options if own else opt.CaptureOptions())
        split[name] = graph
    return split


def _budgets(specs: Sequence[PlacerSpec]) -> str:
    """Return the budget of all placers as a phrase, or each budget with the placers that have it."""
    labels: dict[str, list[str]] = {}
    for spec in specs:
        labels.setdefault(str(opt.BudgetOptions(None, spec.simulations, spec.seconds)), []).append(spec.label)
    if len(labels) == 1:
        return next(iter(labels))
    return "; ".join(f"{budget} for {', '.join(names)}" for budget, names in labels.items())


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' if number != 1 else ''}"
