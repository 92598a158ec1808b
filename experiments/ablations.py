"""What each part of Placeto is worth: one switch changed at a time, trained as long, on the same graphs.

python -m experiments.ablations [--out runs/ablations]

Each variant is trained with several seeds for the same minutes; the validation graphs choose its parameters. Then every
validation and test graph is placed once: the best cheap heuristic's placement and one greedy sweep of the policy.
Differences to the default are of makespans relative to one device, paired by graph and seed. Run again after an
interruption: what is finished is kept.

Legend: S seeds, C graphs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import numpy as np
import tyro
from matplotlib.figure import Figure

from experiments.command import command
from experiments.runs import Run, train_runs
from experiments.tables import Table, cells, machine, markdown, mean_and_spread, publish, rule
from placeto.evaluation.comparison import PlacerSpec, Row, evaluate
from placeto.placers import DEFAULT_PLACER, load_split, split_size
from placeto.problem.cluster import load_cluster
from placeto.progress import ProgressBar
from placeto.training.checkpoint import load_checkpoint
from placeto.training.config import AnyTrainConfig, default_config

DEFAULT = "default"
CHANGES: dict[str, dict[str, object]] = {
    DEFAULT: {},
    "no messages": {"policy.rounds": 0},
    "nothing remembered": {"learning.replay": 0, "learning.supervised_replicas": 2},
    "no parts of groups": {"learning.parts": 0.0},
    "no annealed states": {"learning.annealed": 0.0},
    "reinforcement at the end": {"learning.reinforcement": 0.4},
    "reinforcement alone": {"learning.reinforcement": 1.0, "learning.parts": 0.0},
    "reinforcement alone, rewards at the end": {
        "learning.reinforcement": 1.0,
        "learning.parts": 0.0,
        "learning.reward": "at-the-end",
    },
    "every move kept": {"env.tolerance": None},
    "topological order": {"env.order": "topological"},
    "the paper's": {"placer": "placeto-paper"},
    "the paper's, no messages": {"placer": "placeto-paper", "policy.rounds": 0},
}
"""Name -> settings that differ from the default, as the command line of `placeto train` names them."""


@dataclass(frozen=True)
class AblationConfig:
    """Train variants of Placeto and compare them with the default."""

    out: Path = Path("runs/ablations")
    """folder for the training runs, the rows, the table and the picture"""
    family: str = "cifar10"
    """to train on and to place"""
    cluster: str = "4xv100"
    """to place on; the paper's policy has a head for four devices"""
    variants: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME")] = tuple(CHANGES)
    """which; the default is always among them"""
    minutes: float = 4.0
    """of each training"""
    seeds: int = 3
    """of each training"""
    count: int | None = None
    """only the first so many validation and test graphs are placed"""
    processes: int | None = None
    """how many work at once; all cores if not given"""


@dataclass(frozen=True)
class Difference:
    """Mean of a variant's relative makespans less those of the default on the same graphs."""

    mean: float
    over_graphs: float  # standard error, graphs being the sample, of means over seeds
    over_seeds: float  # standard error, seeds being the sample, of means over graphs; nan with one seed


def variant(name: str, out: str) -> AnyTrainConfig:
    """The settings of a variant.

    Raises:
        SystemExit: there is no such variant.
    """
    if name not in CHANGES:
        raise SystemExit(f"error: no variant is called {name!r}; variants: {', '.join(CHANGES)}")
    changes = dict(CHANGES[name])
    config = default_config(str(changes.pop("placer", DEFAULT_PLACER)), out)
    for key, value in changes.items():
        part, _, setting = key.partition(".")
        new = replace(getattr(config, part), **{setting: value}) if setting else value
        config = replace(config, **{part: new})  # type: ignore[arg-type]
    return config


def plan(config: AblationConfig) -> dict[tuple[str, int], Run]:
    """The training runs by variant and seed, the default first."""
    train, validation = (
        tuple(f"{config.family}:{split}:{index}" for index in range(split_size(config.family, split)))
        for split in ("train", "validation")
    )
    runs = {}
    for name in dict.fromkeys((DEFAULT, *config.variants)):
        for seed in range(config.seeds):
            out = config.out / "runs" / f"{name.replace(' ', '-')}-{seed}"
            training = replace(variant(name, str(out)), minutes=config.minutes, seed=seed)
            runs[name, seed] = Run(training, config.cluster, train, validation)
    return runs


def place(config: AblationConfig, runs: Mapping[tuple[str, int], Run], split: str) -> list[Row]:
    """A row for each graph of a split, variant and seed."""
    count = min(config.count or 10**9, split_size(config.family, split))
    graphs, names = load_split(config.family, split, count), list(dict.fromkeys(name for name, _ in runs))
    rows: list[Row] = []
    with ProgressBar(f"placing {split}", total=len(graphs) * len(runs)) as bar:
        for seed in range(config.seeds):
            rows += evaluate(
                graphs,
                load_cluster(config.cluster),
                [PlacerSpec(name, runs[name, seed].config.out) for name in names],
                (seed,),
                out=config.out / f"{split}.json",
                processes=config.processes,
                report=bar.after(len(rows)),
            )
    return rows


def relative(rows: Sequence[Row], name: str) -> np.ndarray:
    """(S, C) relative makespans of a variant."""
    own = [row for row in rows if row["placer"] == name]
    return np.array([[row["relative"] for row in of] for of in cells(own, "seed").values()])


def difference(rows: Sequence[Row], name: str) -> Difference:
    """How a variant differs from the default."""
    change = relative(rows, name) - relative(rows, DEFAULT)
    seeds, graphs = change.shape
    over_graphs = float(change.mean(0).std(ddof=1) / np.sqrt(graphs)) if graphs > 1 else np.nan
    over_seeds = float(change.mean(1).std(ddof=1) / np.sqrt(seeds)) if seeds > 1 else np.nan
    return Difference(float(change.mean()), over_graphs, over_seeds)


def table(of_split: Mapping[str, Sequence[Row]], runs: Mapping[tuple[str, int], Run]) -> Table:
    """A line for each variant: mean makespans with their spread over seeds, then the difference on test graphs."""
    head = ["variant", *of_split, "test: less default", "± over graphs", "± over seeds", "iterations", "simulated"]
    lines: list[Sequence[str]] = [head, rule(len(head))]
    for name in dict.fromkeys(name for name, _ in runs):
        means = [mean_and_spread(relative(rows, name).mean(1).tolist(), ".4f") for rows in of_split.values()]
        change = difference(of_split["test"], name)
        errors = [f"{error:.4f}" if np.isfinite(error) else "" for error in (change.over_graphs, change.over_seeds)]
        saved = [load_checkpoint(run.config.out) for (other, _), run in runs.items() if other == name]
        spent = [f"{np.mean([checkpoint[key] for checkpoint in saved]):.0f}" for key in ("iteration", "simulations")]
        compared = ["", "", ""] if name == DEFAULT else [f"{change.mean:+.4f}", *errors]
        lines.append([name, *means, *compared, *spent])
    return lines


def difference_figure(of_split: Mapping[str, Sequence[Row]], names: Sequence[str], title: str) -> Figure:
    """A dot for each variant and split, with the larger of its two standard errors."""
    figure = Figure(figsize=(8.0, 1.4 + 0.35 * len(names)), layout="constrained")
    axes = figure.add_subplot()
    for number, (split, rows) in enumerate(of_split.items()):
        changes = [difference(rows, name) for name in names]
        errors = [np.nanmax([change.over_graphs, change.over_seeds, 0.0]) for change in changes]
        place = np.arange(len(names)) + 0.16 * (2 * number - 1)
        axes.errorbar([change.mean for change in changes], place, xerr=errors, fmt="o", markersize=4, label=split)
    axes.axvline(0.0, color="0.3", linewidth=1.0)
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.set_xlabel("makespan / one device, less that of the default (right = worse)")
    axes.grid(alpha=0.3, axis="x")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize="small", frameon=False)
    axes.set_title(title, loc="left", fontsize="medium")
    return figure


def main(config: AblationConfig) -> None:
    """Train, place, print the table and write it with the picture."""
    config.out.mkdir(parents=True, exist_ok=True)
    runs = plan(config)
    train_runs(list(runs.values()), config.processes)
    of_split = {split: place(config, runs, split) for split in ("validation", "test")}
    graphs = {split: len({row["graph"] for row in rows}) for split, rows in of_split.items()}
    where = f"{config.family} on {config.cluster}"
    lines = [
        f"{where}, {config.minutes:g} minutes of training with each of {config.seeds} seeds, {graphs['validation']} "
        f"validation and {graphs['test']} test graphs; {machine()}.",
        "Mean makespan of one greedy pass relative to one device, ± its standard deviation over seeds; then the paired "
        "difference to the default on test graphs and its standard errors, graphs or seeds being the sample.",
        markdown(table(of_split, runs)),
    ]
    names = [name for name in dict.fromkeys(name for name, _ in runs) if name != DEFAULT]
    title = f"Variants of Placeto, {where}: difference ± standard error"
    publish(config.out, "ablations", lines, difference_figure(of_split, names or [DEFAULT], title))


if __name__ == "__main__":
    command(main, AblationConfig, "ablations", __doc__)
