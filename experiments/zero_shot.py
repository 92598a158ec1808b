"""Zero-shot placement of unseen graphs: cumulative distributions of makespan, as in the figures of the Placeto paper.

python -m experiments.zero_shot [--out runs/zero_shot]

Of each family, learned placers are trained on the training graphs, their parameters are chosen on the validation
graphs, and each test graph is placed once, without search: the best cheap heuristic and one pass for Placeto, one
forward pass for the others. Beside them stand the checkpoint that comes with the package, policies fine-tuned on the
very test graph (from the pretrained parameters: the best placement met while training, or the one that the policy makes
afterwards), one random placement, the best cheap heuristic of each graph, and annealing. Run again after an
interruption: what is finished is kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Annotated

import numpy as np
import tyro

from experiments.command import command
from experiments.panels import panel_figure
from experiments.rows import cheap_rows, kept_rows, problem_of, result_row
from experiments.runs import PRETRAINED, Run, train_runs, training_row
from experiments.tables import Table, cells, machine, markdown, publish, rule
from graphs import SHIPPED
from placeto.evaluation.comparison import PlacerSpec, Row, evaluate, parse_spec, save_rows
from placeto.evaluation.summary import summarize
from placeto.placers import DEFAULT_PLACER, LEARNED, load_placer, load_split, split_size, zero_shot
from placeto.problem.cluster import load_cluster
from placeto.progress import ProgressBar
from placeto.training.checkpoint import load_checkpoint
from placeto.training.config import default_config
from placeto.training.trainer import pretrained_config


@dataclass(frozen=True)
class ZeroShotConfig:
    """Train on families, place their unseen graphs."""

    out: Path = Path("runs/zero_shot")
    """folder for the training runs, the rows, the tables and the picture"""
    families: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME")] = tuple(SHIPPED)
    """one panel and table each"""
    cluster: str = "4xv100"
    """to place on"""
    placers: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME")] = tuple(LEARNED)
    """learned placers to train"""
    minutes: float = 10.0
    """of each training"""
    seeds: int = 3
    """of each training, of the random placement and of the searches"""
    count: int = 16
    """only the first so many test graphs"""
    searches: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME@N")] = ("anneal@1000", "anneal@10000")
    """with their simulations"""
    tuned: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME")] = ("placeto",)
    """learned placers to fine-tune on each test graph"""
    tune_simulations: int = 2000
    """placements of each fine-tuning"""
    tune_seeds: int = 1
    """how many of the trained policies are fine-tuned"""
    processes: int | None = None
    """how many work at once; all cores if not given"""


def pretraining(config: ZeroShotConfig, family: str) -> dict[tuple[str, int], Run]:
    """The runs on a family, by placer and seed."""
    train, validation = (_names(family, split, split_size(family, split)) for split in ("train", "validation"))
    runs = {}
    for placer in config.placers:
        for seed in range(config.seeds):
            training = default_config(placer, str(config.out / "runs" / f"{family}-{placer}-{seed}"))
            training = replace(training, minutes=config.minutes, seed=seed)
            runs[placer, seed] = Run(training, config.cluster, train, validation)
    return runs


def fine_tuning(config: ZeroShotConfig, family: str) -> dict[Run, str]:
    """The runs on single test graphs, each with its label; the pretrained checkpoints must be there."""
    runs = {}
    for placer in config.tuned:
        for seed in range(min(config.tune_seeds, config.seeds)):
            before = pretraining(config, family)[placer, seed].config.out
            for graph in _names(family, "test", config.count):
                out = config.out / "runs" / f"{graph.replace(':', '-')}-{placer}-{seed}"
                training = pretrained_config(before, load_checkpoint(before), str(out))
                training = replace(training, simulations=config.tune_simulations, seed=seed, validate_every=10**9)
                runs[Run(training, config.cluster, (graph,), initial=before)] = f"{placer} fine-tuned"
    return runs


def _names(family: str, split: str, count: int) -> tuple[str, ...]:
    return tuple(f"{family}:{split}:{index}" for index in range(count))


def place(config: ZeroShotConfig, family: str) -> list[Row]:
    """All rows of a family but those of fine-tuning."""
    graphs, cluster = load_split(family, "test", config.count), load_cluster(config.cluster)
    plain = [PlacerSpec("random", "random"), *(parse_spec(text, None, None, None) for text in config.searches)]
    runs = pretraining(config, family)
    total = len(graphs) * (config.seeds * (len(plain) + len(config.placers)) + 1)
    rows: list[Row] = []
    with ProgressBar(f"placing {family}", total=total) as bar:
        for seed in range(config.seeds):
            trained = [PlacerSpec(f"{p} zero-shot", runs[p, seed].config.out) for p in config.placers]
            trained += [PlacerSpec(PRETRAINED, DEFAULT_PLACER)] if seed == 0 else []
            rows += evaluate(
                graphs,
                cluster,
                [*trained, *plain],
                (seed,),
                out=config.out / f"{family}.json",
                processes=config.processes,
                report=bar.after(len(rows)),
            )
    return [*rows, *cheap_rows(config.out, graphs, config.cluster, f"heuristics on {family}")]


def tuned_row(run: Run, label: str) -> Row:
    """The better of what a fine-tuning run met and of the placement that its policy makes afterwards."""
    met, (graph,) = training_row(run, label), run.graphs
    result = zero_shot(load_placer(run.config.out), problem_of(graph, run.cluster), run.config.seed)
    after = result_row(graph, run.cluster, label, run.config.seed, result)
    better = min(met, after, key=lambda row: (not row["fits"], row["makespan_us"]))
    return better | {key: met[key] + after[key] for key in ("simulations", "seconds")}


def table(rows: Sequence[Row]) -> Table:
    """A line for each placer, the best mean first; makespans relative to one device."""
    head = ["placer", "mean", "median", "worst", "/ best known", "wins", "fits", "simulations", "s"]
    lines: list[Sequence[str]] = [head, rule(len(head))]
    relative = {placer: [row["relative"] for row in own] for (placer,), own in cells(rows, "placer").items()}
    for s in sorted(summarize(rows), key=lambda s: s.relative):
        mean = f"{s.relative:.3f}" + (f" ± {s.spread:.3f}" if s.spread > 0 else "")
        makespans = [mean, f"{np.median(relative[s.placer]):.3f}", f"{s.worst:.3f}", f"{s.to_best:.3f}"]
        counts = [f"{s.wins}/{s.graphs}", f"{s.fits}/{s.rows}", f"{s.simulations:.0f}", f"{s.seconds:.2f}"]
        lines.append([s.placer, *makespans, *counts])
    return lines


def distribution(values: Sequence[float]) -> list[tuple[float, float]]:
    """Points (value, share of the values up to there), from 0 to 1.

    >>> distribution([3.0, 1.0])
    [(1.0, 0.0), (1.0, 0.5), (3.0, 1.0)]
    """
    ordered = sorted(values)
    return [(ordered[0], 0.0), *((value, place / len(ordered)) for place, value in enumerate(ordered, 1))]


def main(config: ZeroShotConfig) -> None:
    """Train, place, fine-tune, print the tables and write them with the picture."""
    config.out.mkdir(parents=True, exist_ok=True)
    runs = [run for family in config.families for run in pretraining(config, family).values()]
    train_runs(runs, config.processes)
    tuning = {family: fine_tuning(config, family) for family in config.families}
    train_runs([run for of in tuning.values() for run in of], config.processes, "fine-tuning")
    lines = [
        f"{config.minutes:g} minutes of training with each of {config.seeds} seeds, {config.count} test graphs of each "
        f"family on {config.cluster}; {machine()}. Makespans are relative to one device; ± is the standard deviation "
        "over seeds. Fine-tuning: simulations and s are its own, without those of the training before it.",
    ]
    panels, rows = {}, []
    for family in config.families:
        tuned = {
            f"{run.graphs[0]} {label} {sha256(run.checkpoint.read_bytes()).hexdigest()}": partial(tuned_row, run, label)
            for run, label in tuning[family].items()
        }
        found = [*place(config, family), *kept_rows(config.out / "tuned.json", tuned, f"fine-tuned on {family}")]
        lines += [f"### {family}", markdown(table(found))]
        by_placer = {placer: [row["relative"] for row in of] for (placer,), of in cells(found, "placer").items()}
        panels[family] = {placer: distribution(values) for placer, values in by_placer.items()}
        rows += found
    save_rows(rows, config.out / "rows.json")
    title = f"Unseen graphs on {config.cluster}"
    publish(config.out, "zero_shot", lines, panel_figure(panels, "makespan / one device", "share of graphs", title))


if __name__ == "__main__":
    command(main, ZeroShotConfig, "zero_shot", __doc__)
