"""What ignoring the network card that the devices of a host share costs.

python -m experiments.links [--graphs cifar10:test:0 ...] [--clusters 2x4xv100] [--simulations 1000] [--seeds 3]

Placed as if each pair of devices had the link for itself, and placed with the shared links; both run with them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from experiments.command import command
from experiments.harness import Cell, Sweep, grouped, measure_cells
from experiments.tables import markdown, mean_and_spread
from placeto.problem.problem import PlacementProblem
from placeto.simulator.schedule import simulate

HEAD = ("graph", "cluster", "placer", "believed / true", "loss, %", "of one device, placed with them", "hosts used")
FORMS = ".3f", ".1f", ".3f", ".2g"


@dataclass(frozen=True)
class Links(Sweep):
    """Place with and without shared links."""

    graphs: tuple[str, ...] = ("cifar10:test:0", "nmt:test:0", "ptb:test:0", "inception_v3:test:1", "bert:test:0")
    """files or family:split:index"""
    clusters: tuple[str, ...] = ("2x4xv100",)
    """presets or files, with shared links"""


def measure(cell: Cell, simulations: int) -> tuple[float, float, float, int]:
    """Believed over true makespan of what is placed without the shared links, its loss in per cent, and the other's.

    The last number is that of the hosts on which what is placed without the shared links has ops.
    """
    true, shared = cell.problem, cell.problem.cluster
    without = PlacementProblem(true.graph, replace(shared, shared_links=()))
    blind, seeing = cell.place(without, simulations), cell.place(true, simulations)
    ran = simulate(true, blind.placement, order=blind.order).makespan_us
    loss = 100 * (ran / seeing.makespan_us - 1)
    hosts = len(np.unique(np.array(shared.hosts)[blind.placement]))
    return blind.makespan_us / ran, loss, seeing.makespan_us / true.single_device_us, hosts


def main(config: Links) -> None:
    """Print the table, and the mean loss of each placer."""
    found = measure_cells(config.cells(), partial(measure, simulations=config.simulations))
    lines, losses = [list(HEAD)], dict[str, list[float]]()
    for (graph, cluster, placer), rows in grouped(found, "graph", "cluster", "placer").items():
        columns = np.array(rows).T
        losses.setdefault(placer, []).append(float(columns[1].mean()))
        numbers = [mean_and_spread(list(column), form) for column, form in zip(columns, FORMS, strict=True)]
        lines.append([graph, cluster, placer, *numbers])
    print(f"{markdown(lines)}\n")
    for placer, values in losses.items():
        print(f"{placer}: {np.mean(values):.1f} % lost in the mean, {max(values):.1f} at most")


if __name__ == "__main__":
    command(main, Links, "links", __doc__)
