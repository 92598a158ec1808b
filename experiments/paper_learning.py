"""Does placeto-paper learn? Traversals of unseen graphs beside untrained, random, METIS, expert and own training.

python -m experiments.paper_learning [--steps 2000] [--processes 2] [--out runs/paper_learning]

On the training graphs of each family, on each cluster, the policy of the Placeto paper is trained with some seeds; the
validation graphs choose the parameters. Then every test graph is traversed once from the paper's start, a random
placement, with the most likely devices. What counts is the makespan at the end of the traversal: the best met also
counts the start. Beside it stand the untrained network, uniformly random traversals, METIS, the expert's cut, the best
cheap heuristic, and, on the first test graphs, policies trained on that very graph alone. Trainings end after a number
of gradient steps, so that a busy machine changes nothing. Run again after an interruption: what is finished is kept,
and what has begun goes on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Annotated

import numpy as np
import tyro
from matplotlib.figure import Figure
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from experiments.command import command
from experiments.harness import measure_cells, problem_of
from experiments.runs import Run, graphs_of, policies, train_runs
from experiments.tables import Table, machine, markdown, mean_and_spread, publish
from placeto.environment.instance import make_instance
from placeto.environment.walk import Walk
from placeto.heuristics import HEURISTICS
from placeto.heuristics.local_search.starts import best_cheap
from placeto.policies.placeto_paper import PlacetoPaperPolicy, Surroundings
from placeto.policies.traversal import traverse
from placeto.simulator.evaluator import Evaluator
from placeto.training.checkpoint import load_checkpoint
from placeto.training.config import TraversalLearningConfig, TraversalTrainConfig
from placeto.training.learners.learner import RANDOM

TRAINED, UNTRAINED, VALIDATED = "trained on the family", "untrained", "validation/end"
RANDOMLY, CHEAP, OWN = "random", "best cheap heuristic", "trained on that very graph"
RIVALS = "metis", "expert"
LINES = {UNTRAINED: ("0.6", "-"), RANDOMLY: ("0.6", ":"), "metis": ("0.2", "--"), "expert": ("0.2", "-.")}
Ends = dict[str, np.ndarray]  # who -> (S, C) makespans relative to one device, of S seeds and C graphs


@dataclass(frozen=True)
class PaperLearningConfig:
    """Train the paper's policy on families and on single graphs."""

    out: Path = Path("runs/paper_learning")
    """folder for the training runs, the table and the picture"""
    families: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME")] = ("nmt", "ptb", "cifar10")
    """each on each cluster"""
    clusters: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME")] = ("4xv100", "4xk80")
    """to place on"""
    steps: int = 2000
    """gradient steps of each training on a family"""
    own_steps: int = 800
    """gradient steps of each training on one graph"""
    seeds: int = 3
    """of training on the first family on the first cluster; elsewhere there is one"""
    single: int = 1
    """how many of the test graphs get a policy of their own"""
    count: int | None = None
    """only the first so many test graphs; all if not given"""
    learning: TraversalLearningConfig = field(default_factory=TraversalLearningConfig)
    """how all of them learn"""
    processes: Annotated[int | None, tyro.conf.arg(aliases=["--workers"])] = None
    """how many train at once; all cores if not given"""


@dataclass(frozen=True)
class Cell:
    """A family on a cluster, and its training runs."""

    family: str
    cluster: str
    trained: tuple[Run, ...]  # one a seed
    own: tuple[Run, ...]  # on the first test graphs, one each
    graphs: tuple[str, ...]  # test graphs

    def __str__(self) -> str:
        return f"{self.family}, {self.cluster}"


def plan(config: PaperLearningConfig) -> list[Cell]:
    """The cells of the table."""
    cells = []
    for cluster in config.clusters:

        def training(name: str, seed: int, steps: int, cluster: str = cluster) -> TraversalTrainConfig:
            out = str(config.out / "runs" / f"{name.replace(':', '-')}-{cluster}-{seed}")
            return TraversalTrainConfig(out, iterations=steps, seed=seed, learning=config.learning)

        for family in config.families:
            first = (cluster, family) == (config.clusters[0], config.families[0])
            names = graphs_of(family, test=config.count)
            graphs = names["test"]
            trained = tuple(
                Run(training(family, seed, config.steps), cluster, names["train"], names["validation"])
                for seed in range(config.seeds if first else 1)
            )
            own = tuple(
                Run(training(graph, 0, config.own_steps), cluster, (graph,)) for graph in graphs[: config.single]
            )
            cells.append(Cell(family, cluster, trained, own, graphs))
    return cells


@cache
def _prepared(graph: str, cluster: str) -> tuple[Walk, Surroundings]:
    walk = Walk(make_instance(problem_of(graph, cluster)))
    return walk, Surroundings.of(walk)


def end(policy: PlacetoPaperPolicy, graph: str, cluster: str) -> tuple[float, float]:
    """Makespan at the end of the most likely traversal and the best met, relative to one device."""
    found = traverse(policy, *_prepared(graph, cluster), 1).end
    return float(found.makespan[0]), float(found.best[0])


def random_end(graph: str, cluster: str) -> tuple[float, float]:
    """The same of uniformly random devices, means over some traversals."""
    walk, random = _prepared(graph, cluster)[0], np.random.default_rng(0)
    state = walk.begin(RANDOM, walk.random_start())
    for _ in range(walk.num_groups):
        state = state.move(random.integers(walk.num_devices, size=RANDOM))
    return float(state.makespan.mean()), float(state.best.mean())


@cache
def rival(name: str, graph: str, cluster: str) -> float:
    """Makespan of a heuristic's placement, or of the best cheap one's, relative to one device."""
    problem = problem_of(graph, cluster)
    if name != CHEAP:
        return float(HEURISTICS[name](problem).makespan_us / problem.single_device_us)
    evaluator = Evaluator(problem)
    best_cheap(evaluator)
    return float(evaluator.best_score / problem.single_device_us)


def ends(cell: Cell) -> tuple[Ends, Ends]:
    """Of all test graphs: makespans at the end, or of the placement; and the best that traversals met."""
    of_end: dict[str, list[list[float]]] = {}
    of_best: dict[str, list[list[float]]] = {}

    def note(who: str, found: Sequence[tuple[float, float]]) -> None:
        of_end.setdefault(who, []).append([last for last, _ in found])
        of_best.setdefault(who, []).append([best for _, best in found])

    for run in cell.trained:
        for who, policy in zip((UNTRAINED, TRAINED), policies(run), strict=True):
            note(who, [end(policy, graph, cell.cluster) for graph in cell.graphs])
    note(RANDOMLY, [random_end(graph, cell.cluster) for graph in cell.graphs])
    note(OWN, [end(policies(run)[1], run.graphs[0], cell.cluster) for run in cell.own])
    for who in (*RIVALS, CHEAP):
        of_end[who] = [[rival(who, graph, cell.cluster) for graph in cell.graphs]]
    return tuple({who: np.array(rows) for who, rows in found.items()} for found in (of_end, of_best))  # type: ignore[return-value]


def table(found: Mapping[Cell, tuple[Ends, Ends]]) -> Table:
    """A line for each family and cluster.

    Means over graphs, ± the standard deviation of these over seeds; and differences of the trained policy, in the mean
    of its seeds, to the others, ± the standard error over graphs.
    """
    less = [f"less {who}" for who in (*RIVALS, RANDOMLY)]
    head = [
        "",
        TRAINED,
        "best met",
        UNTRAINED,
        RANDOMLY,
        "its best met",
        *RIVALS,
        CHEAP,
        *less,
        "better than both",
        OWN,
    ]
    lines: list[Sequence[str]] = [head]
    for cell, (of_end, of_best) in found.items():

        def mean(values: np.ndarray) -> str:
            return mean_and_spread(values.mean(1).tolist(), ".3f")

        trained, both = of_end[TRAINED], np.minimum(of_end["metis"], of_end["expert"])
        own = of_end[OWN]
        same = trained[:, : own.shape[1]]
        lines.append(
            [
                str(cell),
                *(mean(values) for values in (trained, of_best[TRAINED], of_end[UNTRAINED], of_end[RANDOMLY])),
                mean(of_best[RANDOMLY]),
                *(mean(of_end[who]) for who in (*RIVALS, CHEAP)),
                *(_difference(trained, of_end[who]) for who in (*RIVALS, RANDOMLY)),
                f"{100 * (trained < both).mean():.0f} %",
                f"{mean(own)}; there the family's {mean(same)}" if own.size else "-",
            ]
        )
    return lines


def _difference(ours: np.ndarray, others: np.ndarray) -> str:
    """Mean over graphs of (S, C) makespans less others', ± its standard error."""
    of_graphs = ours.mean(0) - others.mean(0)
    error = of_graphs.std(ddof=1) / len(of_graphs) ** 0.5 if len(of_graphs) > 1 else np.nan
    return f"{of_graphs.mean():+.3f} ± {error:.3f}"


def curve(folder: str) -> tuple[list[tuple[float, float]], dict[str, float]]:
    """(Gradient steps, mean end on the validation graphs) while training, and its controls."""
    events = EventAccumulator(folder, size_guidance={"scalars": 0})
    events.Reload()
    points = [(float(event.step), event.value) for event in events.Scalars(VALIDATED)]
    return points, {
        who: events.Scalars(f"validation/{tag}_end")[0].value
        for who, tag in ((UNTRAINED, "untrained"), (RANDOMLY, "random"))
    }


def figure(cells: Sequence[Cell]) -> Figure:
    """A panel a cell: `validation/end`, mean and range over seeds, with lines of those that don't learn."""
    columns = len(dict.fromkeys(cell.cluster for cell in cells))
    rows = -(-len(cells) // columns)
    drawn = Figure(figsize=(4.6 * columns + 1.8, 3.0 * rows + 0.5), layout="constrained")
    for number, cell in enumerate(cells, 1):
        axes = drawn.add_subplot(rows, columns, number)
        found = [curve(run.config.out) for run in cell.trained]
        steps = np.array([step for step, _ in min((points for points, _ in found), key=len)])
        values = np.array([np.interp(steps, *np.array(points).T) for points, _ in found])
        axes.plot(steps, values.mean(0), color="tab:blue", linewidth=1.6, label=f"{TRAINED}, mean of seeds")
        axes.fill_between(steps, values.min(0), values.max(0), color="tab:blue", alpha=0.25, linewidth=0)
        levels = {who: float(np.mean([controls[who] for _, controls in found])) for who in (UNTRAINED, RANDOMLY)}
        levels |= {
            who: float(np.mean([rival(who, g, cell.cluster) for g in cell.trained[0].validation])) for who in RIVALS
        }
        for who, height in levels.items():
            color, style = LINES[who]
            axes.axhline(height, color=color, linestyle=style, linewidth=1.1, label=who)
        axes.set_title(str(cell), loc="left", fontsize="medium")
        axes.set_xlabel("gradient steps")
        axes.set_ylabel("makespan / one device")
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.3)
    drawn.legend(*axes.get_legend_handles_labels(), loc="outside right upper", fontsize="small", frameon=False)
    drawn.suptitle("End of a traversal, mean over the validation graphs", x=0.01, ha="left", fontsize="medium")
    return drawn


def main(config: PaperLearningConfig) -> None:
    """Train, traverse, print the table and write it with the picture."""
    cells = plan(config)
    train_runs([run for cell in cells for run in (*cell.trained, *cell.own)], config.processes)
    found = measure_cells(cells, ends, "traversing test graphs")
    spent = []
    for cell in cells:
        saved = [load_checkpoint(run.checkpoint) for run in cell.trained]
        minutes = mean_and_spread([state["elapsed"] / 60.0 for state in saved], ".0f")
        placements = mean_and_spread([float(state["simulations"]) for state in saved], ",.0f")
        spent.append(f"- {cell}: {minutes} minutes a training, {placements} placements simulated.")
    lines = [
        f"{config.steps:,} gradient steps of {config.learning.episodes} traversals on a family, {config.own_steps:,} "
        f"on one graph; {config.seeds} seeds on {config.families[0]} on {config.clusters[0]}, one elsewhere; "
        f"{len(cells[0].graphs)} test graphs; {machine()}. Makespans at the end of a traversal, relative to one "
        "device, means over the test graphs; ± is the standard deviation over seeds. Columns that begin with 'less' "
        "have the trained policy's end less another's, in the mean over seeds, ± the standard error over test graphs.",
        markdown(table(found)),
        "\n".join(spent),
    ]
    publish(config.out, "paper_learning", lines, figure(cells))


if __name__ == "__main__":
    command(main, PaperLearningConfig, "paper_learning", __doc__)
