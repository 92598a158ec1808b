"""Where a policy goes on working: on other families, other numbers and kinds of devices, larger graphs.

python -m experiments.generalisation [--out runs/generalisation] [--external DIR]

Each table has a line for each training and a column for each set of unseen graphs on a cluster: how much faster one
pass of the policy is than the best cheap heuristic of each graph, in per cent of the latter's makespan, mean over
graphs, then mean and standard deviation over seeds. The checkpoint that comes with the package, which has one seed,
stands beside the others. Run again after an interruption: what is finished is kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from experiments.command import command
from experiments.rows import CHEAP, cheap_rows, problem_of
from experiments.runs import PRETRAINED, Run, train_runs
from experiments.tables import Table, cells, machine, markdown, mean_and_spread, publish, rule
from placeto.evaluation.comparison import PlacerSpec, Row, evaluate, save_rows
from placeto.evaluation.summary import ratio
from placeto.formats.importers import find_importer
from placeto.placers import DEFAULT_PLACER, resolve_graph, split_size
from placeto.problem.cluster import load_cluster
from placeto.problem.graph import ComputationGraph
from placeto.problem.problem import PlacementProblem
from placeto.progress import ProgressBar
from placeto.training.config import TrainConfig

MIXED = "2xv100+2xp100"
HEURISTICS = ("metis", "etf", "heft", "expert", "single")
EXTERNAL = "external"
MAX_OPS = 20_000
LEAST_HEADROOM = 0.02  # share of one device's makespan above the lower bound


@dataclass(frozen=True)
class Graphs:
    """Graphs of families, each on all of some clusters."""

    families: tuple[str, ...]
    clusters: tuple[str, ...] = ("4xv100",)
    half: str = ""  # "small" or "large": only that half of a split, by number of ops

    def names(self, split: str, count: int | None = None) -> tuple[str, ...]:
        """The graphs of a split, the first so many of each family."""
        found: list[str] = []
        for family in self.families:
            names = [f"{family}:{split}:{index}" for index in range(split_size(family, split))]
            if self.half:
                names.sort(key=lambda name: (problem_of(name, self.clusters[0]).num_ops, name))
                names = sorted(_HALVES[self.half](names), key=lambda name: int(name.rpartition(":")[2]))
            found += names[:count]
        return tuple(found)


_HALVES = {
    "small": lambda names: names[: len(names) // 2],
    "large": lambda names: names[len(names) // 2 :],
}


@dataclass(frozen=True)
class Comparison:
    """One table: what is trained, and what is placed, by name."""

    trained: Mapping[str, Graphs]
    placed: Mapping[str, Graphs]


FAMILIES = ("cifar10", "nmt", "ptb")
COMPARISONS = {
    "families": Comparison(
        {family: Graphs((family,)) for family in FAMILIES} | {"all three": Graphs(FAMILIES)},
        {family: Graphs((family,)) for family in FAMILIES},
    ),
    "devices": Comparison(
        {
            "2 and 4 devices": Graphs(("nmt",), ("2xv100", "4xv100")),
            "8 devices": Graphs(("nmt",), ("8xv100",)),
            "2 fast, 2 slow": Graphs(("nmt",), (MIXED,)),
        },
        {
            "4 devices": Graphs(("nmt",)),
            "8 devices": Graphs(("nmt",), ("8xv100",)),
            "2 fast, 2 slow": Graphs(("nmt",), (MIXED,)),
        },
    ),
    "sizes": Comparison(
        {f"{half} graphs": Graphs(("cifar10",), half=half) for half in _HALVES},
        {f"{half} graphs": Graphs(("cifar10",), half=half) for half in _HALVES},
    ),
}


@dataclass(frozen=True)
class GeneralisationConfig:
    """Train on some graphs and place others."""

    out: Path = Path("runs/generalisation")
    """folder for the training runs, the rows, the tables and the picture"""
    comparisons: tuple[str, ...] = tuple(COMPARISONS)
    """which tables"""
    minutes: float = 3.0
    """of each training"""
    seeds: int = 3
    """of each training"""
    count: int = 8
    """only the first so many test graphs of each family are placed"""
    external: Path | None = None
    """folder with graphs of other programs, for the package's checkpoint on two and on eight devices"""
    processes: int | None = None
    """how many work at once; all cores if not given"""


def training_runs(config: GeneralisationConfig) -> dict[tuple[Graphs, int], Run]:
    """The training runs; tables that train on the same graphs share them."""
    runs = {}
    for comparison in config.comparisons:
        for name, graphs in COMPARISONS[comparison].trained.items():
            for seed in range(config.seeds):
                if (graphs, seed) not in runs:
                    out = config.out / "runs" / f"{comparison}-{name}-{seed}".replace(" ", "-").replace(",", "")
                    training = TrainConfig(str(out), minutes=config.minutes, seed=seed)
                    cluster, *others = graphs.clusters
                    split = graphs.names("train"), graphs.names("validation")
                    runs[graphs, seed] = Run(training, cluster, *split, others=tuple(others))
    return runs


def place(config: GeneralisationConfig, runs: Mapping[tuple[Graphs, int], Run]) -> dict[tuple[str, str], list[Row]]:
    """Rows by comparison and name of what is placed: one for each graph, training and seed, and the best heuristic."""
    found: dict[tuple[str, str], list[Row]] = {}
    for comparison in config.comparisons:
        trained, placed = COMPARISONS[comparison].trained, COMPARISONS[comparison].placed
        for target, graphs in placed.items():
            (cluster,) = graphs.clusters
            names = graphs.names("test", config.count)
            loaded = {name: problem_of(name, cluster).graph for name in names}
            rows: list[Row] = []
            total = len(names) * (len(trained) * config.seeds + 1)
            with ProgressBar(f"placing {comparison}: {target}", total=total) as bar:
                for seed in range(config.seeds):
                    specs = [PlacerSpec(name, runs[of, seed].config.out) for name, of in trained.items()]
                    specs += [PlacerSpec(PRETRAINED, DEFAULT_PLACER)] if seed == 0 else []
                    rows += evaluate(
                        loaded,
                        load_cluster(cluster),
                        specs,
                        (seed,),
                        out=config.out / f"{comparison}-{target}.json".replace(" ", "-").replace(",", ""),
                        processes=config.processes,
                        report=bar.after(len(rows)),
                    )
            found[comparison, target] = [*rows, *cheap_rows(config.out, names, cluster)]
    return found


def gains(rows: Sequence[Row], label: str) -> list[float]:
    """How much faster than the best cheap heuristic a policy is, in per cent, mean over graphs: one number a seed.

    >>> rows = [{"placer": CHEAP, "graph": "a", "makespan_us": 10.0}]
    >>> gains([*rows, {"placer": "x", "graph": "a", "seed": 0, "makespan_us": 9.0}], "x")
    [10.0]
    """
    cheap = {row["graph"]: row["makespan_us"] for row in rows if row["placer"] == CHEAP}
    own = cells([row for row in rows if row["placer"] == label], "seed")
    return [
        float(np.mean([100.0 * (1.0 - row["makespan_us"] / cheap[row["graph"]]) for row in of])) for of in own.values()
    ]


def table(comparison: str, rows: Mapping[tuple[str, str], Sequence[Row]]) -> Table:
    """A line for each training, a column for each set of graphs."""
    targets = list(COMPARISONS[comparison].placed)
    lines: list[Sequence[str]] = [["trained on", *(f"{target}, %" for target in targets)], rule(1 + len(targets))]
    for name in (*COMPARISONS[comparison].trained, PRETRAINED):
        lines.append([name, *(mean_and_spread(gains(rows[comparison, target], name), ".1f") for target in targets)])
    return lines


def external_rows(config: GeneralisationConfig, graphs: Mapping[str, ComputationGraph]) -> list[Row]:
    """Graphs of other programs, placed by the package's checkpoint, by annealing, of parts too, and by heuristics."""
    specs = [PlacerSpec("one pass", DEFAULT_PLACER)]
    searches = (DEFAULT_PLACER, "anneal", "multilevel")
    specs += [PlacerSpec(f"{placer}@1000", placer, simulations=1000) for placer in searches]
    specs += [PlacerSpec(placer, placer) for placer in HEURISTICS]
    rows: list[Row] = []
    with ProgressBar("placing external graphs", total=2 * len(graphs) * len(specs)) as bar:
        for cluster in ("2xv100", "8xv100"):
            rows += evaluate(
                graphs,
                load_cluster(cluster),
                specs,
                (0,),
                out=config.out / "external.json",
                processes=config.processes,
                report=bar.after(len(rows)),
            )
    return rows


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


def external_table(rows: Sequence[Row]) -> Table:
    """A line for each graph and cluster: makespans relative to one device, of what fits into memory."""
    labels = list(dict.fromkeys(row["placer"] for row in rows))
    searched = [label for label in labels if label not in HEURISTICS]
    head = ["graph", "cluster", f"best of {', '.join(HEURISTICS)}", *searched]
    lines: list[Sequence[str]] = [head, rule(len(head))]
    for (graph, cluster), own in cells(rows, "graph", "cluster").items():
        fitting = {row["placer"]: row["relative"] for row in own if row["fits"]}
        cheap = min((fitting[label] for label in HEURISTICS if label in fitting), default=None)
        values = [cheap, *(fitting.get(label) for label in searched)]
        lines.append([graph, cluster, *("doesn't fit" if value is None else f"{value:.4f}" for value in values)])
    return lines


def figure_of(rows: Mapping[tuple[str, str], Sequence[Row]], comparisons: Sequence[str]) -> Figure:
    """A panel for each comparison: a group of bars for each set of graphs, a bar for each training."""
    figure = Figure(figsize=(5.0 * len(comparisons), 3.8), layout="constrained")
    for axes, comparison in zip(figure.subplots(1, len(comparisons), squeeze=False)[0], comparisons, strict=True):
        targets = list(COMPARISONS[comparison].placed)
        names = [*COMPARISONS[comparison].trained, PRETRAINED]
        for number, name in enumerate(names):
            values = [gains(rows[comparison, target], name) for target in targets]
            place = np.arange(len(targets)) + (number - (len(names) - 1) / 2) * 0.8 / len(names)
            spread = [np.std(of, ddof=1) if len(of) > 1 else 0.0 for of in values]
            color = "0.6" if name == PRETRAINED else None
            axes.bar(place, [np.mean(of) for of in values], 0.8 / len(names), yerr=spread, label=name, color=color)
        axes.set_xticks(range(len(targets)), targets)
        axes.set_xlabel("placed")
        axes.set_ylabel("faster than the best cheap heuristic by, %")
        axes.axhline(0.0, color="0.3", linewidth=1.0)
        axes.grid(alpha=0.3, axis="y")
        axes.spines[["top", "right"]].set_visible(False)
        axes.margins(y=0.5)
        axes.legend(fontsize="small", frameon=False, title="trained on", title_fontsize="small", loc="upper left")
    figure.suptitle("One pass over unseen graphs", x=0.01, ha="left", fontsize="medium")
    return figure


def main(config: GeneralisationConfig) -> None:
    """Train, place, print the tables and write them, with a picture if there are comparisons.

    Raises:
        SystemExit: an unknown comparison, nothing to do, or no such folder.
    """
    for name in config.comparisons:
        if name not in COMPARISONS:
            raise SystemExit(f"error: no comparison is called {name!r}; comparisons: {', '.join(COMPARISONS)}")
    if not config.comparisons and config.external is None:
        raise SystemExit("error: give a comparison, or a folder of graphs of other programs (--external)")
    external = None if config.external is None else external_graphs(config.external)[0]
    config.out.mkdir(parents=True, exist_ok=True)
    runs = training_runs(config)
    train_runs(list(runs.values()), config.processes)
    rows = place(config, runs)
    save_rows([row for of in rows.values() for row in of], config.out / "rows.json")
    lines = []
    if config.comparisons:
        lines.append(
            f"{config.minutes:g} minutes of training with each of {config.seeds} seeds, up to {config.count} test "
            f"graphs of each family; {machine()}. By how much one pass is faster than the best cheap heuristic, ± its "
            "standard deviation over seeds."
        )
    for comparison in config.comparisons:
        lines += [f"#### {comparison}", markdown(table(comparison, rows))]
    if external is not None:
        lines += ["#### graphs of other programs", markdown(external_table(external_rows(config, external)))]
    figure = figure_of(rows, config.comparisons) if config.comparisons else None
    publish(config.out, "generalisation", lines, figure)


if __name__ == "__main__":
    command(main, GeneralisationConfig, "generalisation", __doc__)
