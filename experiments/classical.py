"""The table of the placers that don't learn: every placer, at equal budgets, on every family and on external graphs.

python -m experiments.classical --external DIR [--out runs/classical]

Placers that make no use of a budget run once, with what simulations they take; those that search run at each budget,
with several seeds. Makespans are relative to the best single device. The largest budgets run on a part of the graphs,
on one cluster, and have a table of their own, beside the others on the same graphs. Run again after an interruption:
rows that are there already are kept. About half an hour on two idle cores for each three searches.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import tyro

from experiments.command import command
from experiments.tables import Table, markdown, rule
from graphs import SHIPPED
from placeto.cores import cores
from placeto.evaluation.comparison import PlacerSpec, Row, evaluate
from placeto.evaluation.summary import Summary, ratio, summarize
from placeto.formats.importers import find_importer
from placeto.heuristics import HEURISTICS, SEARCHES
from placeto.placers import load_split, resolve_graph
from placeto.problem.cluster import Cluster, load_cluster
from placeto.problem.files import write_text
from placeto.problem.graph import ComputationGraph
from placeto.problem.grouping import group_ops
from placeto.problem.problem import PlacementProblem
from placeto.progress import ProgressBar

LEFT_OUT = ("exact",)
"""Takes minutes on the smallest of these graphs, and refuses the others."""
EXTERNAL = "external"
MAX_OPS = 20_000
LEAST_HEADROOM = 0.02  # share of one device's makespan above the lower bound

Graphs = Mapping[str, ComputationGraph]


@dataclass(frozen=True)
class ClassicalConfig:
    """Compare all placers that don't learn."""

    out: Path = Path("runs/classical")
    """folder for the rows, a file for each cluster, and for the tables"""
    external: Path | None = None
    """folder with graphs of other programs, looked through with all that is below it"""
    families: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME")] = tuple(SHIPPED)
    """which families"""
    split: str = "test"
    """of the families"""
    count: int | None = 16
    """only the first so many graphs of each family"""
    clusters: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME")] = ("2xv100", "4xv100", "8xv100")
    """to place on"""
    budgets: Annotated[tuple[int, ...], tyro.conf.arg(metavar="N")] = (300, 1000, 10_000)
    """of the searches, in simulations, on all graphs"""
    seeds: int = 3
    """of the searches, at `budgets`"""
    large_budgets: Annotated[tuple[int, ...], tyro.conf.arg(metavar="N")] = (100_000,)
    """of the searches, with one seed, on the first graphs of each family"""
    large_count: int = 8
    """how many graphs of each family get the large budgets"""
    large_cluster: str = "4xv100"
    """where they are placed"""
    processes: int | None = None
    """how many work at once; all cores if not given"""


def constructive() -> list[str]:
    """Placers that make no use of a budget; a random draw counts among them."""
    return [name for name in HEURISTICS if name not in (*SEARCHES, *LEFT_OUT)]


def searches(budgets: Iterable[int]) -> list[PlacerSpec]:
    """Those that search, at each budget."""
    names = [name for name in HEURISTICS if name in SEARCHES and name not in LEFT_OUT]
    return [PlacerSpec(f"{name}@{budget}", name, simulations=budget) for budget in budgets for name in names]


def external_graphs(folder: Path) -> tuple[dict[str, ComputationGraph], list[str]]:
    """Graphs of other programs below a folder that leave something to gain, and a line on each of the others.

    Raises:
        SystemExit: there is no such folder.
    """
    if not folder.is_dir():
        raise SystemExit(f"error: there is no folder {folder}")
    graphs, others = {}, []
    for path in sorted(folder.rglob("*")):
        if not path.is_file() or find_importer(path) is None:
            continue
        name, graph = str(path.relative_to(folder)), resolve_graph(str(path))[1]
        problem = PlacementProblem(graph, load_cluster("8xv100"))
        headroom = 1.0 - ratio(problem.lower_bound_us, problem.single_device_us)
        if problem.single_device_us == 0:
            others.append(f"{name}: its ops take no time")
        elif graph.num_ops > MAX_OPS:
            others.append(f"{name}: {graph.num_ops} ops, more than {MAX_OPS}")
        elif headroom < LEAST_HEADROOM:
            others.append(f"{name}: one device is within {headroom:.1%} of the lower bound")
        else:
            graphs[f"{EXTERNAL}:{name}"] = graph
    return graphs, others


def run(config: ClassicalConfig, graphs: Graphs) -> tuple[list[Row], list[Row]]:
    """Rows of all graphs at the usual budgets, and those of some graphs at the large ones."""
    single = [PlacerSpec(name, name) for name in constructive()]
    several, large = searches(config.budgets), searches(config.large_budgets)
    first = _first(graphs, config.large_count) if large else {}
    per_cluster = len(graphs) * (len(single) + len(several) * config.seeds)
    rows: list[Row] = []
    with ProgressBar("evaluating", total=len(config.clusters) * per_cluster + len(first) * len(large)) as bar:

        def work(on: Graphs, cluster: Cluster, specs: Sequence[PlacerSpec], seeds: int) -> list[Row]:
            before = bar.completed
            out = config.out / f"{cluster.name}.json"
            found = evaluate(
                on,
                cluster,
                specs,
                range(seeds),
                out=out,
                processes=config.processes,
                report=lambda done, total, note: bar.update(before + done, f"{note}, {cluster.name}"),
            )
            bar.update(before + len(found))
            return found

        for name in config.clusters:
            cluster = load_cluster(name)
            rows += work(graphs, cluster, single, 1)
            rows += work(graphs, cluster, several, config.seeds)
        return rows, work(first, load_cluster(config.large_cluster), large, 1) if large else []


def overview(rows: Sequence[Row], best: Mapping[tuple[str, str], float], cluster: str) -> Table:
    """Mean makespan of each placer on each family and cluster, then its spread, fits and time.

    Args:
        rows: of all graphs at the usual budgets.
        best: best known makespan, relative, of each (graph, cluster).
        cluster: where seconds are taken.
    """
    families, clusters = (list(dict.fromkeys(part)) for part in zip(*map(_column, rows), strict=True))
    columns = [(family, name) for family in families for name in clusters]
    cells = {c: {s.placer: s for s in summarize([r for r in rows if _column(r) == c])} for c in columns}
    overall = {s.placer: s for s in summarize([row for row in rows if row["cluster"] == cluster])}
    bounds = {(row["graph"], row["cluster"]): _bound(row) for row in rows}
    head = ["placer", *(f"{family} {name}" for family, name in columns), "spread", "fits", "simulations", "s"]
    table = [head, rule(len(head))]
    for placer in dict.fromkeys(row["placer"] for row in rows):
        own = [cells[column][placer] for column in columns]
        last = overall.get(placer)
        table.append(
            [
                placer,
                *(f"{s.relative:.3f}" for s in own),
                _spread(max(own, key=lambda s: s.spread)),
                f"{sum(s.fits for s in own)}/{sum(s.rows for s in own)}",
                f"{last.simulations:.0f}" if last else "",
                f"{last.seconds:.3f}" if last else "",
            ]
        )
    for label, values in (("best known", best), ("lower bound", bounds)):
        means = [np.mean([v for (g, name), v in values.items() if (family_of(g), name) == c]) for c in columns]
        table.append([label, *(f"{mean:.3f}" for mean in means), "", "", "", ""])
    return table


def long_runs(rows: Sequence[Row]) -> Table:
    """Mean makespan by budget on the graphs of the large budgets; rows of one seed and one cluster."""
    families = list(dict.fromkeys(family_of(row["graph"]) for row in rows))
    head = ["placer", *families, "s"]
    table = [head, rule(len(head))]
    for placer in sorted({row["placer"] for row in rows}, key=_by_name_and_budget):
        own = [row for row in rows if row["placer"] == placer]
        means = [np.mean([row["relative"] for row in own if family_of(row["graph"]) == f]) for f in families]
        table.append([placer, *(f"{mean:.3f}" for mean in means), f"{np.mean([r['seconds'] for r in own]):.2f}"])
    return table


def external_table(rows: Sequence[Row], graphs: Graphs, best: Mapping[tuple[str, str], float], cluster: str) -> Table:
    """Each external graph on one cluster: its size, bounds, the best constructive placer and the best searches."""
    rows = [row for row in rows if family_of(row["graph"]) == EXTERNAL and row["cluster"] == cluster]
    budgets = sorted({int(row["placer"].partition("@")[2]) for row in rows if "@" in row["placer"]})
    head = ["graph", "ops", "groups", "one device, ms", "lower bound", "best constructive"]
    head += [*(f"best at {budget}" for budget in budgets), "best known"]
    table = [head, rule(len(head))]
    for graph in dict.fromkeys(row["graph"] for row in rows):
        own = [row for row in rows if row["graph"] == graph]
        problem = PlacementProblem(graphs[graph], load_cluster(cluster))
        cells = [_best_of([row for row in own if "@" not in row["placer"]])]
        cells += [_best_of([row for row in own if row["placer"].endswith(f"@{budget}")]) for budget in budgets]
        sizes = [str(problem.num_ops), str(group_ops(problem).num_groups), f"{problem.single_device_us / 1e3:.1f}"]
        label = graph.removeprefix(f"{EXTERNAL}:")
        table.append([label, *sizes, f"{_bound(own[0]):.3f}", *cells, f"{best[graph, cluster]:.3f}"])
    return table


def best_known(rows: Iterable[Row]) -> dict[tuple[str, str], float]:
    """Least relative makespan of what fits (of anything, where nothing does), by (graph, cluster)."""
    best: dict[tuple[str, str], tuple[bool, float]] = {}
    for row in rows:
        key, found = (row["graph"], row["cluster"]), (not row["fits"], row["relative"])
        best[key] = min(found, best.get(key, found))
    return {key: relative for key, (_, relative) in best.items()}


def family_of(graph: str) -> str:
    """The part of a graph's name before the first colon."""
    return graph.partition(":")[0]


def _column(row: Row) -> tuple[str, str]:
    return family_of(row["graph"]), row["cluster"]


def _bound(row: Row) -> float:
    """Lower bound relative to one device."""
    return ratio(row["lower_bound_us"], row["makespan_us"] / row["relative"])


def _spread(summary: Summary) -> str:
    return f"{summary.spread:.3f}" if summary.spread > 0 else ""


def _best_of(rows: Sequence[Row]) -> str:
    """The placer with the least mean over seeds among those that always fit, and that mean."""
    means = {s.placer.partition("@")[0]: (s.fits < s.rows, s.relative) for s in summarize(rows)}
    placer = min(means, key=lambda name: means[name])
    return f"{means[placer][1]:.3f} {placer}"


def _by_name_and_budget(label: str) -> tuple[int, int]:
    name, _, budget = label.partition("@")
    return list(HEURISTICS).index(name), int(budget or 0)


def _first(graphs: Graphs, count: int) -> dict[str, ComputationGraph]:
    """The first graphs of each family; none of the external ones."""
    taken: dict[str, int] = {}
    for name in graphs:
        taken.setdefault(family_of(name), 0)
    first = {}
    for name, graph in graphs.items():
        family = family_of(name)
        if family != EXTERNAL and taken[family] < count:
            taken[family] += 1
            first[name] = graph
    return first


def main(config: ClassicalConfig) -> None:
    """Evaluate, print the tables and write them to classical.md."""
    config.out.mkdir(parents=True, exist_ok=True)
    graphs: dict[str, ComputationGraph] = {}
    for family in config.families:
        graphs |= load_split(family, config.split, config.count)
    others: list[str] = []
    if config.external is not None:
        found, others = external_graphs(config.external)
        graphs |= found
    rows, large = run(config, graphs)
    best, spent = best_known([*rows, *large]), sum(row["seconds"] for row in [*rows, *large])
    cluster = config.large_cluster if config.large_cluster in config.clusters else config.clusters[0]
    seeds, budgets = f"{config.seeds} seeds" if config.seeds > 1 else "1 seed", ", ".join(map(str, config.budgets))
    lines = [
        f"{len(graphs)} graphs, split {config.split}, {len(cores())} cores, {platform.machine()}, "
        f"{time.strftime('%F')}; {len(rows) + len(large)} placements took {spent / 60:.1f} core minutes.",
        f"Searches at {budgets} simulations with {seeds}; spread is the largest over the columns of the standard "
        f"deviation over seeds; simulations and s (seconds a placement) are means on {cluster}.",
        markdown(overview(rows, best, cluster)),
    ]
    if large:
        names = {row["graph"] for row in large}
        same = [r for r in rows if r["graph"] in names and r["cluster"] == config.large_cluster and r["seed"] == 0]
        lines += [
            f"The first {config.large_count} graphs of each family on {config.large_cluster}, seed 0.",
            markdown(long_runs([*(row for row in same if "@" in row["placer"]), *large])),
        ]
    if any(family_of(name) == EXTERNAL for name in graphs):
        lines += [f"External graphs on {cluster}.", markdown(external_table(rows, graphs, best, cluster))]
    lines += [f"Left out: {line}." for line in others]
    text = "\n\n".join(lines) + "\n"
    write_text(text, config.out / "classical.md")
    print(text)


if __name__ == "__main__":
    command(main, ClassicalConfig, "classical", __doc__)
