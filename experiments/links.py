"""What ignoring the network card that the devices of a host share costs.

python -m experiments.links [--graphs cifar10:test:0 ...] [--clusters 2x4xv100] [--simulations 1000] [--seeds 3]

Placed as if each pair of devices had the link for itself, and placed with the shared links; both run with them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from experiments.command import command
from experiments.tables import markdown, mean_and_spread, rule
from placeto.placers import load_placer, resolve_graph
from placeto.problem.cluster import load_cluster
from placeto.problem.problem import PlacementProblem
from placeto.simulator.schedule import simulate

HEAD = ("graph", "cluster", "placer", "believed / true", "loss, %", "of one device, placed with them", "hosts used")
FORMS = ".3f", ".1f", ".3f", ".2g"


@dataclass(frozen=True)
class Links:
    """Place with and without shared links."""

    graphs: tuple[str, ...] = ("cifar10:test:0", "nmt:test:0", "ptb:test:0", "inception_v3:test:1", "bert:test:0")
    """files or family:split:index"""
    clusters: tuple[str, ...] = ("2x4xv100",)
    """presets or files, with shared links"""
    placers: tuple[str, ...] = ("heft", "multilevel", "placeto")
    """names, or checkpoints"""
    simulations: int = 1000
    """of searches"""
    seeds: int = 3
    """0, 1, ..."""


def measure(graph: str, cluster: str, placer: str, simulations: int, seed: int) -> tuple[float, float, float, int]:
    """Believed over true makespan of what is placed without the shared links, its loss in per cent, and the other's.

    The last number is that of the hosts on which what is placed without the shared links has ops.
    """
    shared = load_cluster(cluster)
    loaded = resolve_graph(graph)[1]
    true = PlacementProblem(loaded, shared)
    without = PlacementProblem(loaded, replace(shared, shared_links=()))
    place = partial(load_placer(placer), simulations=simulations, seed=seed)
    blind, seeing = place(without), place(true)
    ran = simulate(true, blind.placement, order=blind.order).makespan_us
    loss = 100 * (ran / seeing.makespan_us - 1)
    hosts = len(np.unique(np.array(shared.hosts)[blind.placement]))
    return blind.makespan_us / ran, loss, seeing.makespan_us / true.single_device_us, hosts


def main(config: Links) -> None:
    """Print the table, and the mean loss of each placer."""
    lines: list[list[str]] = [list(HEAD), rule(len(HEAD))]
    losses: dict[str, list[float]] = {}
    for graph in config.graphs:
        for cluster in config.clusters:
            for placer in config.placers:
                seeds = range(1 if placer == "heft" else config.seeds)
                rows = np.array([measure(graph, cluster, placer, config.simulations, seed) for seed in seeds]).T
                losses.setdefault(placer, []).append(float(rows[1].mean()))
                numbers = [mean_and_spread(list(row), form) for row, form in zip(rows, FORMS, strict=True)]
                lines.append([graph, cluster, placer, *numbers])
    print(markdown(lines))
    print()
    for placer, values in losses.items():
        print(f"{placer}: {np.mean(values):.1f} % lost in the mean, {max(values):.1f} at most")


if __name__ == "__main__":
    command(main, Links, "links", __doc__)
