"""What does the constructive policy need, and where does it place without having been trained there?

python -m experiments.constructive_ablations [--iterations 300] [--out runs/constructive_ablations]

The constructive policy is trained as in `experiments.constructive`, as it is and with one change at a time, each with
the same number of gradient steps and some seeds: other rounds of messages, features left out, another order of visits,
other numbers of training graphs and of samples. Features are left out by zeros in what the policy reads, in training
and afterwards. Then each policy places the same test graphs. The policy that was trained as it is also places graphs
of other families, and on other clusters, on which it wasn't trained. Run again after an interruption: what is finished
is kept, and what has begun goes on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import Annotated, Any
from unittest.mock import patch

import numpy as np
import torch
import tyro

from experiments import constructive
from experiments.command import command
from experiments.constructive import BEST, BOTH, TRAINED, UNTRAINED, Cell, ConstructiveLearningConfig, measure, table
from experiments.harness import measure_cells
from experiments.runs import OnFamilies, Run, train_run
from experiments.tables import Table, machine, markdown, mean_and_spread, publish
from placeto.policies.one_shot.constructive import ConstructiveConfig
from placeto.policies.one_shot.inputs import UNIT_FEATURES, OneShotInput, UnitKind, make_input
from placeto.problem.cluster import load_cluster, save_cluster
from placeto.problem.problem import PlacementProblem
from placeto.training.config import OneShotTrainConfig
from placeto.training.learners import one_shot

DEFAULT = "as it is"
PER_UNIT = "features", "neighbours", "producers", "shares", "work", "pair", "time", "memory", "profile"
Reads = Callable[[OneShotInput], OneShotInput]
known_placements = cache(one_shot.known_placements)  # for all trainings on the same graphs


def without(graph: OneShotInput, tensors: Sequence[str] = (), columns: Sequence[str] = ()) -> OneShotInput:
    """An input with zeros in place of some tensors, and of some of the features of units."""
    kept = torch.tensor([float(name not in columns) for name in UNIT_FEATURES])
    zeros = {name: torch.zeros_like(getattr(graph, name)) for name in tensors}
    return replace(graph, features=graph.features * kept, **zeros)


def renumbered(graph: OneShotInput, order: Callable[[OneShotInput], torch.Tensor]) -> OneShotInput:
    """An input whose units are visited in another order (U,), and else are as before."""
    visits = order(graph)
    rank = torch.empty_like(visits)
    rank[visits] = torch.arange(len(visits))
    moved = {name: getattr(graph, name)[visits] for name in PER_UNIT}
    moved["producers"] = rank[moved["producers"]]
    return replace(graph, unit=rank[graph.unit], edges=rank[graph.edges], **moved)


def by_work(graph: OneShotInput) -> torch.Tensor:
    """The unit with most work first."""
    return graph.work.argsort(descending=True, stable=True)


def at_random(graph: OneShotInput) -> torch.Tensor:
    """An order that is the same for all graphs of as many units."""
    return torch.randperm(graph.num_units, generator=torch.Generator().manual_seed(0))


@dataclass(frozen=True)
class Change:
    """What a training departs from."""

    policy: Mapping[str, Any] = field(default_factory=dict)  # settings of the network
    learning: Mapping[str, Any] = field(default_factory=dict)  # settings of the learning
    graphs: int | None = None  # training graphs
    reads: Reads | None = None  # what is made of what the policy reads


def left_out(*tensors: str, columns: Sequence[str] = ()) -> Change:
    """Some of what the policy reads is zero."""
    return Change(reads=partial(without, tensors=tensors, columns=columns))


CHANGES = {
    DEFAULT: Change(),
    "no messages": Change({"rounds": 0}),
    "1 round of messages": Change({"rounds": 1}),
    "5 rounds of messages": Change({"rounds": 5}),
    "without profiles over time": left_out("profile"),
    "without transfers and delays": left_out("transfer", "delay", columns=("transfer",)),
    "without delays": left_out("delay"),
    "without loads of devices": left_out("time"),
    "without loads of devices and profiles": left_out("time", "profile"),
    "without links": left_out("links"),
    "without positions": left_out(columns=("position", "tail", "cos2", "cos4", "sin4", "cos8", "sin8")),
    "without sizes": left_out(columns=("flops", "outputs", "parameters", "ops", "producers", "consumers")),
    "visits by work": Change(reads=partial(renumbered, order=by_work)),
    "visits at random": Change(reads=partial(renumbered, order=at_random)),
    "8 training graphs": Change(graphs=8),
    "32 training graphs": Change(graphs=32),
    "300 training graphs": Change(graphs=300),
    "2 samples": Change(learning={"samples": 2}),
    "32 samples": Change(learning={"samples": 32}),
}


@dataclass(frozen=True)
class ConstructiveAblationsConfig(OnFamilies):
    """Train the constructive policy with one change at a time, and place unseen graphs."""

    out: Path = Path("runs/constructive_ablations")
    """folder for the training runs, the rows and the table"""
    families: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME")] = ("nmt",)
    """each on each cluster"""
    changes: tuple[str, ...] = tuple(CHANGES)
    """names of what is changed; the others are compared with the first one, which also places elsewhere"""
    elsewhere: tuple[str, ...] = (
        "ptb@4xv100",
        "cifar10@4xv100",
        "transformer_xl-2@4xv100",
        "nmt@2xv100",
        "nmt@8xv100",
        "nmt@2xv100+2xp100",
        "nmt@8xh100",
        "nmt@4xv100*0.25",
        "nmt@4xv100*4",
    )
    """FAMILY@CLUSTER, which the policy places, too; *0.25 behind it: links with a quarter of the bandwidth"""
    some: int = 16
    """only the first so many test graphs of these"""
    graphs: int = 128
    """training graphs"""
    iterations: int = 300
    """gradient steps of each training"""


@dataclass(frozen=True)
class Ablation(Cell):
    """A family on a cluster, and the training runs with a change."""

    change: str
    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Training:
    """A training with a change."""

    change: str
    run: Run

    def __str__(self) -> str:
        return str(self.run)


def plan(config: ConstructiveAblationsConfig) -> list[Ablation]:
    """The rows of the table of changes."""
    rounds = ConstructiveConfig().rounds
    settings = ConstructiveLearningConfig(
        config.families, config.clusters, config.seeds, config.count, config.processes, out=config.out,
        rounds=(rounds,), graphs=config.graphs, iterations=config.iterations,
    )  # fmt: skip
    ablations = []
    for cell in constructive.plan(settings):
        for name in config.changes:
            change = CHANGES[name]
            train, runs = config.names(cell.family, change.graphs or config.graphs)["train"], []
            for run in cell.runs:
                before = run.config
                assert isinstance(before, OneShotTrainConfig)
                out = f"{before.out}-{name.replace(' ', '-')}-{config.iterations}"
                policy, learning = replace(before.policy, **change.policy), replace(before.learning, **change.learning)
                runs.append(
                    replace(run, config=replace(before, out=out, policy=policy, learning=learning), graphs=train)
                )
            said = f"{cell.family}, {cell.cluster}, {name}"
            ablations.append(
                Ablation(cell.family, cell.cluster, rounds, cell.imitation, tuple(runs), cell.graphs, name, said)
            )
    return ablations


def elsewhere(config: ConstructiveAblationsConfig, usual: Ablation) -> list[Ablation]:
    """The rows of the table of other families and clusters."""
    few, ablations = replace(config, count=config.some), []
    for text in config.elsewhere:
        family, _, cluster = text.partition("@")
        preset, _, factor = cluster.partition("*")
        said = f"{family}, {preset}"
        if factor:
            there, path = load_cluster(preset), config.out / f"{preset}-{factor}.json"
            save_cluster(replace(there, bandwidth=there.bandwidth * float(factor)), path)
            cluster, said = str(path), f"{said}, bandwidth x {factor}"
        graphs = few.names(family, None)["test"]
        ablations.append(replace(usual, family=family, cluster=cluster, graphs=graphs, name=said))
    return ablations


@contextmanager
def reading(reads: Reads | None) -> Iterator[None]:
    """Within it, policies read what `reads` makes of an input, in training and afterwards."""

    @cache
    def changed(problem: PlacementProblem, kind: UnitKind) -> OneShotInput:
        described = make_input(problem, kind)
        return described if reads is None else reads(described)

    with ExitStack() as patches:
        for module in (one_shot, constructive):
            patches.enter_context(patch.object(module, "make_input", changed))
        patches.enter_context(patch.object(one_shot, "known_placements", known_placements))
        yield


def train(training: Training) -> float:
    """Train, and return the core seconds, without the annealing of the training graphs."""
    config = training.run.config
    assert isinstance(config, OneShotTrainConfig)
    for problems, searched in zip(training.run.problems(), (config.learning.searched, 0), strict=True):
        for problem in problems.values():
            known_placements(problem, config.seed, searched)
    began = time.process_time()
    with reading(CHANGES[training.change].reads):
        train_run(training.run)
    return time.process_time() - began


def place(ablation: Ablation) -> dict[str, Any]:
    """What `measure` says of it."""
    with reading(CHANGES[ablation.change].reads):
        makespans, spent = measure(ablation)
    return {"makespans": {who: rows.tolist() for who, rows in makespans.items()}, "milliseconds": spent}


def place_all(ablations: Sequence[Ablation], folder: Path) -> dict[Cell, tuple[constructive.Makespans, float]]:
    """What `measure` says of them. The rows of each training run are kept in a folder."""
    alone = [replace(each, runs=(run,)) for each in ablations for run in each.runs]
    kept = measure_cells(
        alone,
        place,
        "placing test graphs",
        file=lambda cell: folder / f"{cell.runs[0]} {cell.name}, {len(cell.graphs)} graphs.json".replace(" ", "-"),
    )
    found: dict[Cell, tuple[constructive.Makespans, float]] = {}
    for each in ablations:
        rows = [kept[replace(each, runs=(run,))] for run in each.runs]
        makespans = {
            who: np.concatenate([row["makespans"][who] for row in rows[: None if TRAINED in who or who == BOTH else 1]])
            for who in rows[0]["makespans"]
        }
        found[each] = makespans, float(np.mean([row["milliseconds"] for row in rows]))
    return found


def compared(ours: np.ndarray, usual: np.ndarray) -> str:
    """By how many per cent makespans (S, C) of S seeds and C graphs are longer than those of the usual policy.

    The standard error is that over seeds and that over graphs together.
    """
    longer = 100 * np.log(ours / usual)
    means = longer.mean(1), longer.mean(0)
    error = sum(values.var(ddof=1) / len(values) for values in means if len(values) > 1) ** 0.5
    word = "" if abs(longer.mean()) <= 2 * error else ", longer" if longer.mean() > 0 else ", shorter"
    return f"{longer.mean():+.1f} ± {error:.1f}{word}"


def differences(found: Mapping[Ablation, constructive.Makespans], seconds: Mapping[Training, float]) -> Table:
    """A line for each change: means over graphs ± the standard deviation over seeds, and `compared` with no change."""
    likely, best = TRAINED, f"{TRAINED}, {BEST}"
    head = ["", likely, best, UNTRAINED, f"{UNTRAINED}, {BEST}"]
    lines: list[Sequence[str]] = [[*head, f"{likely}, longer by %", f"{best}, longer by %", "core s of a training"]]
    for ablation, makespans in found.items():
        usual = next(
            other
            for there, other in found.items()
            if (there.family, there.cluster) == (ablation.family, ablation.cluster)
        )
        means = [mean_and_spread(makespans[who].mean(1).tolist(), ".3f") for who in head[1:]]
        pairs = [compared(makespans[who], usual[who]) if makespans is not usual else "" for who in (likely, best)]
        spent = min(seconds[Training(ablation.change, run)] for run in ablation.runs)
        lines.append([str(ablation), *means, *pairs, f"{spent:.0f}"])
    return lines


def main(config: ConstructiveAblationsConfig) -> None:
    """Train, place the test graphs, print the tables and write them."""
    torch.set_num_threads(1)
    config.out.mkdir(parents=True, exist_ok=True)
    ablations = plan(config)
    by_seed = [Training(each.change, each.runs[seed]) for seed in range(config.seeds) for each in ablations]
    folder = config.out / "rows"
    folder.mkdir(exist_ok=True)
    seconds = measure_cells(by_seed, train, "training", file=lambda training: folder / f"{training}.json")
    usual = ablations[0]
    others = elsewhere(config, usual)
    found = place_all([*ablations, *others], folder)
    lines = [
        f"{config.iterations:,} gradient steps on {config.graphs} graphs unless the row says otherwise; {config.seeds} "
        f"seeds; {len(usual.graphs)} test graphs; {machine()}. Makespans relative to one device, means over the test "
        "graphs; ± is the standard deviation over seeds. The next columns say by how many per cent the placements are "
        "longer than those of the first row, as differences of logarithms, ± the standard error over seeds and graphs "
        "together; longer or shorter stands behind what is more than two errors. Core seconds are the least of the "
        "seeds, without the annealing of the training graphs.",
        markdown(differences({cell: found[cell][0] for cell in ablations}, seconds)),
        "The policy of the first row, on families and clusters on which it was not trained, but for the first line; "
        f"there, the first {config.some} test graphs of each. In columns in per cent, ± is the standard error over "
        "graphs. Core milliseconds are those of the most likely placement and its simulation, without grouping.",
        markdown(table({cell: found[cell] for cell in (usual, *others)})),
    ]
    publish(config.out, "constructive_ablations", lines, None)


if __name__ == "__main__":
    command(main, ConstructiveAblationsConfig, "constructive_ablations", __doc__)
