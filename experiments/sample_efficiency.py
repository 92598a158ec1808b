"""How many placements each learned placer simulates until it is good, trained from scratch on one graph alone.

python -m experiments.sample_efficiency [--out runs/sample_efficiency]

The counterpart of Table 1 of the Placeto paper (Addanki et al. 2019). Each placer begins with a fresh policy, Placeto's
episodes on one device; nothing imitates a search and no heuristic is tried. Counted are all placements simulated while
training, those for labels included, at the end of the iteration that met the best. Targets are (a) the best cheap
heuristic of the graph and (b) a margin above the best that the reference placer met with any seed. Annealing and hill
climbing from one device show what plain search needs. Run again after an interruption: what is finished is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated

import numpy as np
import tyro

from experiments.command import command
from experiments.runs import (
    CHEAP,
    Run,
    cheap_row,
    kept_rows,
    place_key,
    problem_of,
    result_row,
    train_runs,
    training_row,
)
from experiments.tables import Table, cells, machine, markdown, mean_and_spread, publish, rule
from placeto.evaluation.comparison import Row, save_rows
from placeto.evaluation.figures import panel_figure
from placeto.evaluation.summary import mean_curves
from placeto.heuristics.local_search.annealing import annealing
from placeto.heuristics.local_search.descents import climb
from placeto.heuristics.naive import try_single
from placeto.placers import LEARNED
from placeto.policies.placeto_paper import PlacetoPaperConfig
from placeto.problem.grouping import group_ops
from placeto.problem.problem import PlacementProblem
from placeto.simulator.evaluator import Evaluator
from placeto.training.checkpoint import load_checkpoint
from placeto.training.config import (
    AnyTrainConfig,
    LearningConfig,
    TrainConfig,
)
from placeto.training.recipes import PAPERS, recipe_config
from placeto.training.trainer import pretrained_config

SEARCHES = {"hillclimb": climb, "anneal": annealing}
SCRATCH = LearningConfig(
    reinforcement=0.85,
    graphs=1,
    replicas=4,
    starts="single",
    supervised_moves=40,
    labels=4,
    replay=0,
    annealed=0.0,
    parts=0.0,
    joined=0.0,
)
"""Mostly reinforcement, with fewer labels and episodes an iteration than for a family: here every placement counts."""
TIE = 1e-9  # relative


@dataclass(frozen=True)
class SampleConfig:
    """Train learned placers on single graphs and count placements."""

    out: Path = Path("runs/sample_efficiency")
    """folder for the training runs, the rows, the table and the picture"""
    families: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME")] = ("inception_v3", "nmt", "nasnet")
    """one graph of each"""
    split: str = "test"
    """of the families"""
    indices: tuple[int, ...] = (0,)
    """which graphs of the split"""
    clusters: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME")] = ("2xv100", "4xv100")
    """to place on"""
    placers: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME")] = tuple(LEARNED)
    """learned placers, "-paper" behind the name for the recipe of its paper, LABEL=CHECKPOINT to fine-tune"""
    reference: str = "seq2seq"
    """whose best sets target (b)"""
    within: float = 0.02
    """margin of target (b)"""
    seeds: int = 3
    """of each placer and search"""
    simulations: int = 8000
    """placements of each training run and search"""
    tuning: int | None = None
    """placements of each fine-tuning run; a tenth of the others if not given"""
    minutes: float | None = None
    """each training run ends at the latest after so many minutes"""
    processes: int | None = None
    """how many runs train at once; all cores if not given"""


def recipe(placer: str, out: str, problem: PlacementProblem) -> tuple[AnyTrainConfig, str | None]:
    """How a placer is trained on a single graph, and the checkpoint that it begins with."""
    label, _, checkpoint = placer.partition("=")
    if checkpoint:
        tuning = pretrained_config(checkpoint, load_checkpoint(checkpoint), out)
        return replace(tuning, learning=replace(tuning.learning, graphs=1)), checkpoint  # type: ignore[arg-type]
    name = label.removesuffix("-paper")
    by_paper = name != label and name in PAPERS
    config = recipe_config(name if by_paper else label, "paper" if by_paper else "ours", out)
    if isinstance(config.policy, PlacetoPaperConfig):
        return replace(config, policy=PlacetoPaperConfig(devices=problem.num_devices)), None
    if isinstance(config, TrainConfig):
        return replace(config, learning=SCRATCH), None
    return replace(config, learning=replace(config.learning, graphs=1)), None  # type: ignore[arg-type]


def plan(config: SampleConfig) -> dict[Run, str]:
    """The training runs and the label of each."""
    runs = {}
    for graph in (f"{family}:{config.split}:{index}" for family in config.families for index in config.indices):
        for cluster in config.clusters:
            for placer in config.placers:
                label = placer.partition("=")[0]
                for seed in range(config.seeds):
                    out = config.out / "runs" / f"{graph.replace(':', '-')}-{cluster}-{label}-{seed}"
                    training, initial = recipe(placer, str(out), problem_of(graph, cluster))
                    count = config.simulations if initial is None else config.tuning or config.simulations // 10
                    limits = {"simulations": count, "minutes": config.minutes, "seed": seed}
                    training = replace(training, **limits, validate_every=10**9, save_every=20)  # type: ignore[arg-type]
                    runs[Run(training, cluster, (graph,), initial=initial)] = label
    return runs


def search_row(name: str, graph: str, cluster: str, simulations: int, seed: int) -> Row:
    """What a search finds that begins with all on one device."""
    problem = problem_of(graph, cluster)
    evaluator = Evaluator(problem, group_ops(problem), simulations)
    try_single(evaluator, seed)
    SEARCHES[name](evaluator, evaluator.best_groups[0], np.random.default_rng(seed))
    return result_row(graph, cluster, f"{name} from one device", seed, evaluator.result())


def first_reach(row: Row, target_us: float) -> tuple[int, float] | None:
    """(simulations, seconds) at which a row's makespan is first at a target or below; None if it never is."""
    for simulations, seconds, us in row["history"]:
        if us <= target_us * (1.0 + TIE):
            return simulations, seconds
    return None


def targets(rows: Sequence[Row], reference: str, within: float) -> tuple[float, float | None]:
    """Makespans (a) and (b) of the rows of one graph and cluster; no (b) without rows of the reference placer."""
    (cheap,) = (row["makespan_us"] for row in rows if row["placer"] == CHEAP)
    best = [row["makespan_us"] for row in rows if row["placer"] == reference and row["fits"]]
    return cheap, min(best) * (1.0 + within) if best else None


def table(rows: Sequence[Row], config: SampleConfig) -> Table:
    """A line for each graph, cluster and placer."""
    first = config.placers[0].partition("=")[0]
    head = ["graph, cluster, placer", "best / one device", "(a) placements", "(a) s", "(b) placements", "(b) s"]
    head += [f"(b) / {first}", "simulated", "s"]
    lines: list[Sequence[str]] = [head, rule(len(head))]
    for (graph, cluster), own in cells(rows, "graph", "cluster").items():
        a, b = targets(own, config.reference, config.within)
        by_placer = {placer: of for (placer,), of in cells(own, "placer").items()}
        for placer, of in by_placer.items():
            best = mean_and_spread([row["relative"] for row in of], ".3f")
            if placer == CHEAP:
                lines.append([f"{graph}, {cluster}, {placer}", best, *[""] * 5, *_spent(of)])
                continue
            reached = [*_reached(of, a), *(_reached(of, b) if b is not None else ("", ""))]
            ratio = _ratio(of, by_placer.get(first, []), b) if b is not None and placer != first else ""
            lines.append([f"{graph}, {cluster}, {placer}", best, *reached, ratio, *_spent(of)])
    return lines


def _spent(rows: Sequence[Row]) -> tuple[str, str]:
    return f"{np.mean([row['simulations'] for row in rows]):.0f}", f"{np.mean([row['seconds'] for row in rows]):.1f}"


def _reached(rows: Sequence[Row], target_us: float) -> tuple[str, str]:
    """Mean placements and seconds of the seeds that reach a target, and how many do."""
    found = [reach for row in rows if (reach := first_reach(row, target_us)) is not None]
    if not found:
        return f"not reached (0/{len(rows)})", ""
    placements, seconds = zip(*found, strict=True)
    return f"{mean_and_spread(placements, '.0f')} ({len(found)}/{len(rows)})", mean_and_spread(seconds, ".1f")


def _ratio(rows: Sequence[Row], others: Sequence[Row], target_us: float) -> str:
    """Mean placements to a target, as a multiple of another placer's; where not all seeds reach it, nothing."""
    counts = [[reach[0] for row in of if (reach := first_reach(row, target_us))] for of in (rows, others)]
    if not others or len(counts[0]) < len(rows) or len(counts[1]) < len(others):
        return ""
    return f"{np.mean(counts[0]) / np.mean(counts[1]):.2f}"


def tuning_table(rows: Sequence[Row], config: SampleConfig) -> Table:
    """For each fine-tuned placer and seed: placements to the best of the same seed from scratch, and those it took."""
    head = ["graph, cluster, placer, seed", "from scratch", "placements", "fine-tuned", "to that", "times fewer"]
    lines: list[Sequence[str]] = [head, rule(len(head))]
    tuned = [label for label, _, checkpoint in (placer.partition("=") for placer in config.placers) if checkpoint]
    for (graph, cluster, seed), own in cells(rows, "graph", "cluster", "seed").items():
        by_placer = {row["placer"]: row for row in own}
        for label in tuned:
            if not by_placer.keys() >= {label, config.reference}:
                continue
            scratch, other = by_placer[config.reference], by_placer[label]
            count, _, us = scratch["history"][-1]
            reach = first_reach(other, us)
            times = ["not reached", ""] if reach is None else [f"{reach[0]}", f"{count / reach[0]:.1f}"]
            line = [f"{scratch['relative']:.3f}", f"{count}", f"{other['relative']:.3f}", *times]
            lines.append([f"{graph}, {cluster}, {label}, {seed}", *line])
    return lines


def main(config: SampleConfig) -> None:
    """Train, search, print the table and write it with its picture."""
    config.out.mkdir(parents=True, exist_ok=True)
    runs = plan(config)
    wanted: dict[str, Callable[[], Row]] = {}
    for run in runs:
        (graph,), cluster, seed, budget = run.graphs, run.cluster, run.config.seed, config.simulations
        where = place_key(graph, cluster)
        wanted[f"{CHEAP} {where}"] = partial(cheap_row, graph, cluster)
        for name in SEARCHES:
            wanted[f"{name} {where} {budget} {seed}"] = partial(search_row, name, graph, cluster, budget, seed)
    others = kept_rows(config.out / "searches.json", wanted, "searching")
    train_runs(list(runs), config.processes)
    rows = [*(training_row(run, label) for run, label in runs.items()), *others]
    save_rows(rows, config.out / "rows.json")
    panels, levels = {}, {}
    for (graph, cluster), own in cells(rows, "graph", "cluster").items():
        title, single = f"{graph} on {cluster}", problem_of(graph, cluster).single_device_us
        panels[title] = mean_curves([row for row in own if row["placer"] != CHEAP], "simulations")
        a, b = targets(own, config.reference, config.within)
        levels[title] = {"(a) best cheap heuristic": a / single}
        if b is not None:
            levels[title][f"(b) {config.within:.0%} above {config.reference}'s best"] = b / single
    figure = panel_figure(
        panels, "placements", "best makespan / one device", "Trained from scratch on one graph", log=True, levels=levels
    )
    minutes = sum(row["seconds"] for row in rows) / 60
    lines = [
        f"{config.simulations} placements a run, {config.seeds} seeds; {machine()}; {minutes:.1f} core minutes. Means "
        "± standard deviations over the seeds that reach a target; how many do stands in brackets.",
        f"(a) the best cheap heuristic; (b) within {config.within:.0%} of {config.reference}'s best of all seeds.",
        markdown(table(rows, config)),
    ]
    if any("=" in placer for placer in config.placers):
        lines += [
            f"Fine-tuning against {config.reference} from scratch, seed by seed:",
            markdown(tuning_table(rows, config)),
        ]
    publish(config.out, "sample_efficiency", lines, figure)


if __name__ == "__main__":
    command(main, SampleConfig, "sample_efficiency", __doc__)
