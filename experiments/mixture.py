"""Does one policy, trained on many families and clusters, place unseen graphs without a simulation?

python -m experiments.mixture [--iterations 650] [--out runs/mixture]

One constructive policy is trained on graphs of many families. Each graph is on one preset and on clusters of 2 to 32
devices that are drawn at random, as in `experiments.recipes`. It learns from rewards. With `--imitation` it first
imitates placements that annealing found, which helped on one family, and did not help here. `ptb`, `inception_v3`,
`bert` and `gnmt-4` are never trained on. Then it places test graphs of ten families on three clusters, one of which it
was never trained on. Beside it stand the same placers as in `experiments.constructive`, and the pass of the policy that
comes with the package, which simulates. Run again after an interruption: it goes on.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import tyro

from experiments.command import command
from experiments.constructive import CHEAP, RANDOMLY, RIVALS, TRAINED, UNTRAINED, Cell, Makespans, gains, measure, table
from experiments.harness import measure_cells, problem_of
from experiments.recipes import Mixture, train_on, training_problems, validation_problems
from experiments.runs import Run
from experiments.tables import Table, machine, markdown, publish
from placeto.placers import DEFAULT_PLACER, load_placer, zero_shot
from placeto.policies.one_shot.constructive import ConstructiveConfig
from placeto.problem.grouping import group_ops
from placeto.training.checkpoint import load_checkpoint, save_checkpoint
from placeto.training.config import OneShotTrainConfig, default_config

CHECKPOINT = "constructive.safetensors"  # its name in the folder of the experiment
PASS = "pass of placeto"


@dataclass(frozen=True)
class MixtureConfig(Mixture):
    """Train one constructive policy for all families and clusters, and place unseen graphs."""

    out: Path = Path("runs/mixture")
    """folder for the training run, the small checkpoint (constructive.safetensors) and the tables"""
    graphs: tuple[str, ...] = (
        "cifar10:32",
        "nmt:32",
        "resnet:12",
        "rnnlm-2:12",
        "rnnlm-4:12",
        "transformer_xl-2:12",
        "transformer_xl-4:12",
        "wavenet:12",
        "nasnet:12",
        "amoebanet:12",
        "gnmt-2:6",
        "llama:12",
        "unet:12",
        "moe:12",
    )
    """FAMILY:COUNT, the first so many training graphs of a family"""
    validation: tuple[str, ...] = (
        "cifar10:4",
        "nmt:4",
        "resnet:2",
        "rnnlm-2:1",
        "rnnlm-4:1",
        "transformer_xl-2:1",
        "transformer_xl-4:1",
        "wavenet:2",
        "nasnet:2",
        "amoebanet:2",
        "gnmt-2:1",
        "llama:2",
        "unet:2",
        "moe:2",
    )
    """FAMILY:COUNT, the first so many validation graphs of a family"""
    iterations: int = 650
    """gradient steps"""
    imitation: float = 0.0
    """share of the training, at its beginning, in which it imitates"""
    families: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME")] = (
        "cifar10",
        "nmt",
        "nasnet",
        "amoebanet",
        "gnmt-2",
        "llama",
        "ptb",
        "inception_v3",
        "gnmt-4",
        "bert",
    )
    """whose test graphs it places"""
    clusters: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME")] = ("4xv100", "8xh100", "2xv100+2xp100")
    """to place on"""
    count: int = 4
    """only the first so many test graphs of each family"""


def trained(config: MixtureConfig) -> Run:
    """Train, unless that is finished, and write the small checkpoint."""
    usual = default_config("constructive", str(config.out / "run"))
    assert isinstance(usual, OneShotTrainConfig)
    learning = replace(usual.learning, average=0.98, imitation=config.imitation)
    settings = replace(usual, iterations=config.iterations, seed=config.seed, validate_every=100, learning=learning)
    run = Run(replace(settings, save_every=100), "", ())
    if not run.checkpoint.is_file() or load_checkpoint(run.checkpoint)["iteration"] < config.iterations:
        train_on(training_problems(config), validation_problems(config), run.config)
    saved = load_checkpoint(run.checkpoint)
    kept = {name: saved[name] for name in ("placer", "devices", "best_parameters")}
    save_checkpoint(kept | {"config": saved["config"] | {"out": ""}}, config.out / CHECKPOINT)
    return run


def plan(config: MixtureConfig, run: Run) -> list[Cell]:
    """The rows of the table."""
    names = {family: tuple(f"{family}:test:{i}" for i in range(config.count)) for family in config.families}
    return [
        Cell(family, cluster, ConstructiveConfig().rounds, config.imitation, (run,), names[family])
        for cluster in config.clusters
        for family in config.families
    ]


def passes(cell: Cell) -> tuple[np.ndarray, float]:
    """Makespans (1, C) of the pass of the shipped policy, relative to one device, and its core milliseconds a graph.

    The milliseconds are without grouping, and with the rules with which it begins.
    """
    placer, found, spent = load_placer(DEFAULT_PLACER), [], 0.0
    for graph in cell.graphs:
        problem = problem_of(graph, cell.cluster)
        group_ops(problem)  # kept
        began = time.process_time()
        found.append(zero_shot(placer, problem).makespan_us / problem.single_device_us)
        spent += time.process_time() - began
    return np.array([found]), 1e3 * spent / len(found)


def measure_all(cell: Cell) -> tuple[Makespans, float, float]:
    """What `measure` says of a cell, with the makespans of `passes`; and the milliseconds of both."""
    makespans, spent = measure(cell)
    of_pass, of_pass_ms = passes(cell)
    return makespans | {PASS: of_pass}, spent, of_pass_ms


def summary(found: Mapping[Cell, Makespans], config: MixtureConfig) -> Table:
    """By how many per cent the most likely placements are shorter than those of others, on how many cells no longer.

    The per cent are means over cells ± the standard error over cells.
    """
    known = {text.partition(":")[0] for text in config.graphs}
    parts = {
        "all families": found.keys(),
        "families of the training": [cell for cell in found if cell.family in known],
        "families held out": [cell for cell in found if cell.family not in known],
    }
    parts |= {cluster: [cell for cell in found if cell.cluster == cluster] for cluster in config.clusters}
    others = (CHEAP, PASS, *RIVALS, RANDOMLY, UNTRAINED)
    lines: list[Sequence[str]] = [["cells", *(f"shorter than {who}, % (no longer)" for who in others)]]
    for name, cells in parts.items():
        line = [f"{name}: {len(cells)}"]
        for who in others:
            shorter = [float(gains(found[cell][TRAINED], found[cell][who]).mean()) for cell in cells]
            error = np.std(shorter, ddof=1) / len(shorter) ** 0.5 if len(shorter) > 1 else np.nan
            no_longer = sum(gain >= 0.0 for gain in shorter)
            line.append(f"{np.mean(shorter):.1f} ± {error:.1f} ({no_longer})")
        lines.append(line)
    return lines


def main(config: MixtureConfig) -> None:
    """Train, place the test graphs, print the tables and write them."""
    torch.set_num_threads(1)
    run = trained(config)
    found = measure_cells(plan(config, run), measure_all, "placing test graphs")
    makespans = {cell: found[cell][0] for cell in found}
    spent, of_pass = (np.mean([row[column] for row in found.values()]) for column in (1, 2))
    saved, size = load_checkpoint(run.checkpoint), (config.out / CHECKPOINT).stat().st_size / 1e6
    lines = [
        f"{config.iterations:,} gradient steps; {saved['simulations']:,} simulations, {saved['elapsed'] / 60.0:.0f} "
        f"minutes; {len(saved['graphs']['training'])} training graphs; seed {config.seed}; {CHECKPOINT} has "
        f"{size:.2f} MB; {machine()}. The first {config.count} test graphs of each family. A cell is a family on a "
        "cluster. By how many per cent the trained policy's most likely placements are shorter (a minus: longer), as "
        "means over cells ± the standard error over cells; in brackets, on how many cells they are no longer:",
        markdown(summary(makespans, config)),
        f"Core milliseconds a graph, means over cells, without grouping: {spent:.0f} for the most likely placement and "
        f"its simulation, {of_pass:.0f} for the {PASS}.",
        "Makespans relative to one device, means over the test graphs; ± in columns in per cent is the standard error "
        "over graphs. Core milliseconds are those of the most likely placement and its simulation, without grouping.",
        markdown(table({cell: row[:2] for cell, row in found.items()}, (PASS,))),
    ]
    publish(config.out, "mixture", lines, None)


if __name__ == "__main__":
    command(main, MixtureConfig, "mixture", __doc__)
