"""Which departures from the published method bring placeto-paper nearer to METIS on unseen graphs?

python -m experiments.paper_departures [--steps 200] [--out runs/paper_departures]

The policy of the Placeto paper is trained on the training graphs of a family as it is, with one change at a time, and
with all of them, each with the same number of gradient steps and some seeds; the validation graphs choose the
parameters. Then every test graph is traversed once, with the most likely devices. What counts is the makespan at the
end. Beside it stand the same networks before training, random devices, METIS and the best cheap heuristic. Run again
after an interruption: what is finished is kept, and what has begun goes on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from experiments.command import command
from experiments.harness import measure_cells
from experiments.paper_learning import CHEAP, RANDOMLY, TRAINED, UNTRAINED, end, policies, random_end, rival
from experiments.runs import OnFamilies, Run, train_runs
from experiments.tables import Table, machine, markdown, mean_and_spread, publish
from placeto.policies.placeto_paper import PlacetoPaperConfig
from placeto.training.checkpoint import load_checkpoint
from placeto.training.config import TraversalLearningConfig, TraversalTrainConfig

UNCHANGED = "unchanged"
OTHERS = RANDOMLY, "metis", CHEAP


@dataclass(frozen=True)
class Change:
    """What a training departs from."""

    learning: Mapping[str, Any] = field(default_factory=dict)  # settings of the learning
    policy: Mapping[str, Any] = field(default_factory=dict)  # settings of the network
    graphs: int | None = None  # training graphs, drawn beyond the split; None = those of the split

    def __add__(self, other: Change) -> Change:
        learning, policy = {**self.learning, **other.learning}, {**self.policy, **other.policy}
        return Change(learning, policy, other.graphs or self.graphs)


CHANGES = {
    "shared baseline": Change({"baseline_rounds": 1}),
    "128 training graphs": Change(graphs=128),
    "loads of devices": Change(policy={"compare": True}),
    "reward at the end": Change({"reward": "log-at-the-end", "discount": 1.0}),
}
CHANGES = {
    UNCHANGED: Change(),
    **CHANGES,
    "all but the reward": sum(list(CHANGES.values())[:3], Change()),
    "all four": sum(CHANGES.values(), Change()),
}


@dataclass(frozen=True)
class PaperDeparturesConfig(OnFamilies):
    """Train the paper's policy with some changes, and place unseen graphs."""

    out: Path = Path("runs/paper_departures")
    """folder for the training runs and the table"""
    changes: tuple[str, ...] = tuple(CHANGES)
    """names of what is changed"""
    steps: int = 200
    """gradient steps of each training"""
    episodes: int = TraversalLearningConfig.episodes
    """traversals of a gradient step"""


@dataclass(frozen=True)
class Cell:
    """A family on a cluster, a change, and its training runs."""

    family: str
    cluster: str
    change: str
    runs: tuple[Run, ...]  # one a seed
    graphs: tuple[str, ...]  # test graphs

    def __str__(self) -> str:
        return f"{self.family}, {self.cluster}, {self.change}"


def plan(config: PaperDeparturesConfig) -> list[Cell]:
    """The rows of the table."""
    cells = []
    for family in config.families:
        for cluster in config.clusters:
            for name in config.changes:
                change, runs = CHANGES[name], []
                names = config.names(family, change.graphs)
                for seed in range(config.seeds):
                    settings = TraversalTrainConfig(
                        str(config.out / "runs" / f"{family}-{cluster}-{name.replace(' ', '-')}-{seed}"),
                        iterations=config.steps,
                        seed=seed,
                        validate_every=20,
                        policy=PlacetoPaperConfig(**change.policy),
                        learning=replace(TraversalLearningConfig(episodes=config.episodes), **change.learning),
                    )
                    runs.append(Run(settings, cluster, names["train"], names["validation"]))
                cells.append(Cell(family, cluster, name, tuple(runs), names["test"]))
    return cells


def measure(cell: Cell) -> dict[str, np.ndarray]:
    """Makespans (S, C) at the end, relative to one device, of S seeds and C test graphs; by who."""
    found: dict[str, list[list[float]]] = {}
    for run in cell.runs:
        for who, policy in policies(run).items():
            found.setdefault(who, []).append([end(policy, graph, cell.cluster)[0] for graph in cell.graphs])
    found[RANDOMLY] = [[random_end(graph, cell.cluster)[0] for graph in cell.graphs]]
    for who in OTHERS[1:]:
        found[who] = [[rival(who, graph, cell.cluster) for graph in cell.graphs]]
    return {who: np.array(rows) for who, rows in found.items()}


def table(found: Mapping[Cell, Mapping[str, np.ndarray]]) -> Table:
    """A line for each family, cluster and change.

    Means over graphs, ± the standard deviation of these over seeds; and the mean over seeds and graphs less that of the
    unchanged policy and of METIS, ± the standard error over graphs and, of the former, over seeds.
    """
    lines: list[Sequence[str]] = [
        ["", TRAINED, UNTRAINED, "validation", "less unchanged", "less metis", *OTHERS, "minutes"]
    ]
    for cell, makespans in found.items():
        saved = [load_checkpoint(run.checkpoint) for run in cell.runs]
        (usual,) = (
            other[TRAINED]
            for there, other in found.items()
            if (there.family, there.cluster, there.change) == (cell.family, cell.cluster, UNCHANGED)
        )
        less = [makespans[TRAINED].mean(1) - usual.mean(1), (makespans[TRAINED] - makespans["metis"]).mean(0)]
        lines.append(
            [
                str(cell),
                *(mean_and_spread(makespans[who].mean(1).tolist(), ".3f") for who in (TRAINED, UNTRAINED)),
                mean_and_spread([float(state["best_validation"]) for state in saved], ".3f"),
                *(map(_with_error, less)),
                *(f"{makespans[who].mean():.3f}" for who in OTHERS),
                mean_and_spread([state["elapsed"] / 60.0 for state in saved], ".1f"),
            ]
        )
    return lines


def _with_error(differences: np.ndarray) -> str:
    """Mean and, of several values, its standard error."""
    error = f" ± {differences.std(ddof=1) / len(differences) ** 0.5:.3f}" if len(differences) > 1 else ""
    return f"{differences.mean():+.3f}{error}"


def main(config: PaperDeparturesConfig) -> None:
    """Train, traverse the test graphs, print the table and write it."""
    torch.set_num_threads(1)
    config.out.mkdir(parents=True, exist_ok=True)
    cells = plan(config)
    by_seed = [cell.runs[seed] for seed in range(config.seeds) for cell in cells]  # so that fewer seeds can be shown
    train_runs(by_seed, config.processes)
    found = measure_cells(cells, measure, "traversing test graphs")
    lines = [
        f"{config.steps:,} gradient steps of {config.episodes} traversals; {config.seeds} seeds; "
        f"{len(cells[0].graphs)} test graphs; {machine()}. Makespans at the end of a traversal, of one device, "
        "means over the test graphs; ± is the standard deviation over seeds. Columns that begin with 'less' have the "
        "trained policy's end less another's: less unchanged ± the standard error over seeds, less metis ± that over "
        "test graphs. Minutes are those of a training, beside other programs.",
        markdown(table(found)),
    ]
    publish(config.out, "paper_departures", lines, None)


if __name__ == "__main__":
    command(main, PaperDeparturesConfig, "paper_departures", __doc__)
