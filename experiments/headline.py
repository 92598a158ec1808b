"""How many placements and core seconds learned placers need, beside what the papers claim of theirs.

python -m experiments.headline [--cells runs/headline/cells] [--placements 4000] [--seeds 3] [--workers 2]

One unseen graph of each model is placed on 4 and on 2 devices. The policies of the literature are trained from scratch
on that graph alone; so are Placeto's, from one device, without a heuristic and without a search to imitate. The policy
that comes with the package places from one device, and so do the same network untrained, annealing and multilevel;
`placeto as shipped` begins with all constructive placers; the best of as many random placements shows what learning
adds. Then policies that never saw a graph stand beside ones that were trained on it, with cumulative distributions over
three families, as in the Placeto paper. What doesn't fit into memory is no placement. A core second is CPU time of one
process, after a warm-up. Run again after an interruption: what is finished is kept, cell by cell.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import tyro

from experiments.command import command
from experiments.headline_placers import AS_SHIPPED, PLACERS, POLICY, ZERO_SHOT
from experiments.headline_tables import (
    REFERENCES,
    by_place,
    claims,
    distribution,
    distributions,
    makespans,
    unseen,
    until,
    worse,
)
from experiments.panels import panel_figure
from experiments.tables import Table, machine, markdown, publish
from experiments.trajectories import Cell, Trajectory, run_cells

MODELS = ("nmt", "inception_v3", "nasnet", "rnnlm", "amoebanet", "transformer_xl", "wavenet", "gnmt-2")
ALL = PLACERS | ZERO_SHOT


@dataclass(frozen=True)
class HeadlineConfig:
    """Run cells, and print the tables of those that are there."""

    out: Path = Path("runs/headline")
    """folder for the tables and the picture"""
    cells: Path = Path("runs/headline/cells")
    """folder for a file of each cell"""
    models: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME")] = MODELS
    """one unseen graph of each"""
    clusters: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME")] = ("4xv100", "2xv100")
    """to place on, in this order"""
    placers: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME")] = tuple(PLACERS)
    """which lines of the tables"""
    families: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME")] = ("cifar10", "ptb", "nmt")
    """of the distributions, on the first cluster"""
    count: int = 8
    """only the first so many unseen graphs of each family"""
    split: str = "test"
    """of models and families"""
    placements: int = 4000
    """of each run"""
    seeds: int = 3
    """of each run on the models; the distributions take one"""
    workers: int | None = None
    """processes; all cores if not given"""


def plan(config: HeadlineConfig) -> list[Cell]:
    """The cells on the models."""
    return [
        Cell(f"{model}:{config.split}:0", cluster, placer, seed, config.placements)
        for seed in range(config.seeds)
        for cluster in config.clusters
        for placer in config.placers
        for model in config.models
        if seed == 0 or PLACERS[placer].seeded
    ]


def plan_unseen(config: HeadlineConfig) -> list[Cell]:
    """The cells of the distributions."""
    return [
        Cell(f"{family}:{config.split}:{index}", config.clusters[0], placer, 0, config.placements)
        for index in range(config.count)
        for family in config.families
        for placer in ("one device", "expert", *ZERO_SHOT)
    ]


def costs(found: Mapping[Cell, Trajectory]) -> Table:
    """Core seconds of the cells of each placer."""
    lines: list[Sequence[str]] = [["placer", "cells", "core seconds a cell", "most"]]
    for placer in ALL:
        if spent := [run.core_seconds for cell, run in found.items() if cell.placer == placer]:
            lines.append([placer, f"{len(spent)}", f"{np.mean(spent):.3g}", f"{max(spent):.3g}"])
    return lines


def main(config: HeadlineConfig) -> None:
    """Run what is missing, print the tables and write them with the picture."""
    found = run_cells([*plan(config), *plan_unseen(config)], ALL, config.cells, config.workers)
    runs = by_place([found[cell] for cell in plan(config)])
    families = by_place([found[cell] for cell in plan_unseen(config)])
    hours = sum(one.core_seconds for one in found.values()) / 3600.0
    commits = ", ".join(sorted({one.commit for one in found.values()}))
    lines = [
        f"{config.placements} placements a run; seeds: {config.seeds}; {machine()}; "
        f"{len(found)} cells; {hours:.2f} core hours; made by {commits}.",
        "### Beside what the papers claim",
        "Geometric means over graphs and clusters; in brackets the most, and how often a placer never came within 1 % "
        "of the best that any seed and recipe of ColocRL, or of the grouper, met: it then counts with all that it "
        "spent. Placements and core seconds of a placer are medians over seeds, those of the reference are of its best "
        "run. Below another: by how much the mean makespan is shorter.",
        markdown(claims(runs)),
    ]
    for cluster in config.clusters:
        lines += [f"### Makespan / expert, {cluster}", markdown(makespans(runs, cluster))]
        for name, recipes in REFERENCES.items():
            lines += [
                f"### Placements and core seconds until within 1 % of the best of {name}, {cluster}",
                markdown(until(runs, cluster, recipes)),
            ]
    for placer in (POLICY, AS_SHIPPED):
        listed = worse(runs, placer)
        lines += [f"### Where {placer} ends worse", "\n".join(f"- {line}" for line in listed) or "Nowhere."]
    lines += ["### Graphs never seen, beside training on that graph", markdown(unseen(families))]
    lines += ["### What the cells cost", markdown(costs(found))]
    panels = {
        family: {placer: distribution(values) for placer, values in own.items()}
        for family, own in distributions(families).items()
    }
    drawn = {family: own for family, own in panels.items() if own}
    title = f"One pass of policies on {config.clusters[0]}: share of the graphs on which the makespan is at most x"
    figure = panel_figure(drawn, "makespan / one device", "share of graphs", title) if drawn else None
    publish(config.out, "headline", lines, figure)


if __name__ == "__main__":
    command(main, HeadlineConfig, "headline", __doc__)
