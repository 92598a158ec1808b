"""``placeto evaluate``: compare placers on many graphs at equal budgets."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from placeto.commands.common import (
    GraphList,
    OptionalFloat,
    OptionalInt,
    OptionalPath,
    OptionalText,
    OutputPath,
    UsageError,
    check_output,
    check_positive,
)
from placeto.graph import ComputationGraph
from placeto.load import load_split, resolve_graph
from placeto.progress import ProgressBar


@dataclass(frozen=True)
class Arguments:
    """Compare placers on many graphs: a table on stdout, the rows in a file.

    A placer is NAME, NAME@SIMULATIONS (its own budget), NAME@pass (no budget: a learned placer's zero-shot pass)
    or LABEL=CHECKPOINT. The name of a learned placer stands for the one in --checkpoint. Run again after an
    interruption: rows that are in the file already are kept.
    """

    cluster: str
    """a name from `placeto list clusters`, or a cluster file"""
    placers: str
    """comma-separated, e.g. placeto,etf,anneal"""
    family: OptionalText = None
    """graph family; its --split is evaluated"""
    split: str = "test"
    """train, validation or test"""
    count: OptionalInt = None
    """only the first so many graphs of the split"""
    graphs: GraphList = ()
    """more graphs: files or family:split:index"""
    checkpoint: OptionalPath = None
    """a checkpoint or run directory of `placeto train`"""
    simulations: OptionalInt = None
    """budget of every placer: how many placements may be simulated"""
    seconds: OptionalFloat = None
    """budget of every placer: how long the search may take"""
    seeds: int = 1
    """how many seeds (0, 1, ...) each placer runs with"""
    processes: OptionalInt = None
    """how many work at once, one thread each, all cores if not given"""
    output: OutputPath = None
    """write rows to this .json file, and the table to the .md file beside it"""
    curve: OptionalPath = None
    """draw makespan against simulations and seconds to this .png, .svg or .pdf file"""


def run(arguments: Arguments) -> None:
    """Evaluate, print the table, write what was asked for."""
    _check(arguments)
    from placeto.cluster import load_cluster
    from placeto.evaluate import evaluate, parse_spec
    from placeto.summary import markdown_table, mean_curves, summarize

    graphs = _graphs(arguments)
    cluster = load_cluster(arguments.cluster)
    names = [name for name in arguments.placers.split(",") if name.strip()]
    specs = [parse_spec(n, arguments.checkpoint, arguments.simulations, arguments.seconds) for n in names]
    if not specs:
        raise UsageError("--placers names no placer; see `placeto list placers`")
    with ProgressBar("evaluating", total=len(graphs) * len(specs) * arguments.seeds) as bar:
        rows = evaluate(
            graphs,
            cluster,
            specs,
            range(arguments.seeds),
            out=arguments.output,
            processes=arguments.processes,
            history=arguments.curve is not None,
            report=lambda done, total, note: bar.update(done, note),
        )
    budget = _budget(arguments)
    title = f"{len(graphs)} graphs on {cluster.name}, {budget}, {arguments.seeds} seed{'s'[: arguments.seeds > 1]}"
    table = f"{title}\n\n{markdown_table(summarize(rows))}\n"
    print(table)
    if arguments.output is not None:
        markdown = arguments.output.with_name(arguments.output.name.removesuffix(".gz")).with_suffix(".md")
        markdown.write_text(table)
        print(f"wrote {arguments.output} and {markdown}", file=sys.stderr)
    if arguments.curve is not None:
        from placeto.plot import curve_figure, save_figure

        save_figure(curve_figure(mean_curves(rows), title), arguments.curve)


def _check(arguments: Arguments) -> None:
    check_output("--out", arguments.output)
    check_output("--curve", arguments.curve)
    options = {"--simulations": arguments.simulations, "--seconds": arguments.seconds, "--seeds": arguments.seeds}
    for option, value in (options | {"--processes": arguments.processes}).items():
        check_positive(option, value)
    if arguments.family is None and not arguments.graphs:
        raise UsageError("nothing to evaluate: give --family NAME or --graphs GRAPH ...")
    if arguments.curve is not None:
        from placeto.plot import check_suffix

        check_suffix(arguments.curve)
    if arguments.output is not None and not arguments.output.name.endswith((".json", ".json.gz")):
        raise UsageError(f"--out {arguments.output}: must end in .json or .json.gz")


def _graphs(arguments: Arguments) -> dict[str, ComputationGraph]:
    split = load_split(arguments.family, arguments.split, arguments.count) if arguments.family is not None else {}
    return split | dict(map(resolve_graph, arguments.graphs))


def _budget(arguments: Arguments) -> str:
    parts = [f"{arguments.simulations} simulations"] if arguments.simulations is not None else []
    parts += [f"{arguments.seconds:g} seconds"] if arguments.seconds is not None else []
    return " or ".join(parts) if parts else "no budget"
