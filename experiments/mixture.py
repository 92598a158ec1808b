"""Does one policy, trained by rewards on many families and clusters, place unseen graphs without a simulation?

python -m experiments.mixture [--iterations 8000] [--out runs/mixture]

One constructive policy is trained on graphs of many families. Each graph is on one preset and on clusters of 2 to 32
devices that are drawn at random, as in `experiments.recipes`. First it places groups, and then parts of groups, because
groups are too coarse for the best placements of many graphs. `ptb`, `inception_v3`, `bert` and `gnmt-4` are never
trained on. Then it places test graphs of ten families on three clusters, one of which it was never trained on. Beside
it stand the same placers as in `experiments.constructive`. Run again after an interruption: it goes on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import tyro

from experiments.command import command
from experiments.constructive import CHEAP, RANDOMLY, RIVALS, TRAINED, UNTRAINED, Cell, Makespans, gains, measure, table
from experiments.harness import measure_cells
from experiments.recipes import Mixture, train_on, training_problems, validation_problems
from experiments.runs import Run
from experiments.tables import Table, machine, markdown, publish
from placeto.policies.one_shot.constructive import ConstructiveConfig
from placeto.training.checkpoint import load_checkpoint, save_checkpoint
from placeto.training.config import OneShotTrainConfig, default_config

CHECKPOINT = "constructive.safetensors"  # its name in the folder of the experiment


@dataclass(frozen=True)
class MixtureConfig(Mixture):
    """Train one constructive policy for all families and clusters, and place unseen graphs."""

    out: Path = Path("runs/mixture")
    """folder for the training runs, the small checkpoint (constructive.safetensors) and the tables"""
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
    first: int = 2000
    """gradient steps on groups"""
    iterations: int = 8000
    """gradient steps on parts of groups, after those"""
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


def trained(config: MixtureConfig) -> list[Run]:
    """Train on groups and then on parts, unless that is finished, and write the small checkpoint."""
    usual = default_config("constructive", str(config.out / "groups"))
    assert isinstance(usual, OneShotTrainConfig)
    on_groups = replace(usual, iterations=config.first, seed=config.seed, validate_every=100, save_every=100)
    on_parts = replace(
        on_groups,
        out=str(config.out / "parts"),
        iterations=config.iterations,
        save_every=50,
        policy=ConstructiveConfig(units="parts"),
        learning=replace(usual.learning, lr=1e-3, average=0.98, imitation=0.0),
    )
    runs = [Run(each, "", ()) for each in (on_groups, on_parts)]
    initial = None
    for run in runs:
        if _iterations(run) < (run.config.iterations or 0):
            train_on(training_problems(config), validation_problems(config), run.config, initial)
        saved = initial = load_checkpoint(run.checkpoint)
    kept = {name: saved[name] for name in ("placer", "devices", "best_parameters")}
    save_checkpoint(kept | {"config": saved["config"] | {"out": ""}}, config.out / CHECKPOINT)
    return runs


def _iterations(run: Run) -> int:
    """How many of its gradient steps are done."""
    return int(load_checkpoint(run.checkpoint)["iteration"]) if run.checkpoint.is_file() else 0


def plan(config: MixtureConfig, on_groups: Run, run: Run) -> list[Cell]:
    """The rows of the table."""
    assert isinstance(on_groups.config, OneShotTrainConfig)
    assert isinstance(run.config, OneShotTrainConfig)
    return [
        Cell(
            family,
            cluster,
            run.config.policy.rounds,
            on_groups.config.learning.imitation,
            (run,),
            tuple(f"{family}:test:{i}" for i in range(config.count)),
        )
        for cluster in config.clusters
        for family in config.families
    ]


def summary(found: Mapping[Cell, tuple[Makespans, float]], config: MixtureConfig) -> Table:
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
    others = (CHEAP, *RIVALS, RANDOMLY, UNTRAINED)
    lines: list[Sequence[str]] = [["cells", *(f"shorter than {who}, % (no longer)" for who in others)]]
    for name, cells in parts.items():
        line = [f"{name}: {len(cells)}"]
        for who in others:
            shorter = [float(gains(found[cell][0][TRAINED], found[cell][0][who]).mean()) for cell in cells]
            error = np.std(shorter, ddof=1) / len(shorter) ** 0.5 if len(shorter) > 1 else np.nan
            no_longer = sum(gain >= 0.0 for gain in shorter)
            line.append(f"{np.mean(shorter):.1f} ± {error:.1f} ({no_longer})")
        lines.append(line)
    return lines


def main(config: MixtureConfig) -> None:
    """Train, place the test graphs, print the tables and write them."""
    torch.set_num_threads(1)
    runs = trained(config)
    found = measure_cells(plan(config, *runs), measure, "placing test graphs")
    stages, size = [load_checkpoint(run.checkpoint) for run in runs], (config.out / CHECKPOINT).stat().st_size / 1e6
    simulations, seconds = (sum(stage[name] for stage in stages) for name in ("simulations", "elapsed"))
    lines = [
        f"{config.first:,} gradient steps on groups and {config.iterations:,} on their parts; {simulations:,} "
        f"simulations, {seconds / 60.0:.0f} minutes; {len(stages[-1]['graphs']['training'])} training graphs; seed "
        f"{config.seed}; {CHECKPOINT} has {size:.2f} MB; {machine()}. The first {config.count} test graphs of each "
        "family. A cell is a family on a cluster. By how many per cent the trained policy's most likely placements "
        "are shorter (a minus: longer), as means over cells ± the standard error over cells; in brackets, on how many "
        "cells they are no longer:",
        markdown(summary(found, config)),
        "Makespans relative to one device, means over the test graphs; ± in columns in per cent is the standard error "
        "over graphs. Core milliseconds are those of the most likely placement and its simulation, without grouping.",
        markdown(table(found)),
    ]
    publish(config.out, "mixture", lines, None)


if __name__ == "__main__":
    command(main, MixtureConfig, "mixture", __doc__)
