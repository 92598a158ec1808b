"""What the order of execution is worth: first ready first served, longest remaining path first, program order.

python -m experiments.orders [--graphs cifar10:test:0 ...] [--clusters 2xv100,4xv100] [--seeds 3] [--simulations 1000]

Each placer places under the first and under the second; then every placement that was found under the second is run
under the others, and in the order of its own schedule with links that send in the order in which tensors are made.
Per cent are of makespans, means over graphs, clusters and seeds, with the standard error over graphs and clusters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from experiments.command import command
from experiments.harness import RULES, Cell, Sweep, grouped, measure_cells
from experiments.tables import markdown
from placeto.evaluation.summary import ratio
from placeto.simulator.schedule import simulate

GRAPHS = (
    "cifar10:test:0",
    "cifar10:test:1",
    "nmt:test:0",
    "nmt:test:1",
    "ptb:test:0",
    "ptb:test:1",
    "inception_v3:test:1",
    "bert:test:0",
    "nasnet:test:0",
)
HEAD = ("placer", "placed for it", "placed for fifo", "run by fifo", "in program order", "as listed", "simulations")


@dataclass(frozen=True)
class Orders(Sweep):
    """Place under two dispatches; run what was found under the others."""

    graphs: tuple[str, ...] = GRAPHS
    """files or family:split:index"""
    clusters: tuple[str, ...] = ("2xv100", "4xv100")
    """presets or files"""


def measure(cell: Cell, simulations: int) -> list[float]:
    """Changes of the makespan, per cent: columns 1 and 2 from fifo's, the others from that of column 1."""
    by = {name: cell.problem.under(name) for name in ("fifo", "priority", "list")}
    fifo, best = (cell.place(by[name], simulations) for name in ("fifo", "priority"))
    schedule = best.schedule()
    order = schedule.order[schedule.order < cell.problem.num_ops]
    listed = simulate(by["list"], best.placement, order=order).makespan_us
    others = [simulate(by[name], best.placement).makespan_us for name in ("fifo", "list")]
    own = [best.makespan_us, simulate(by["priority"], fifo.placement).makespan_us]
    changes = [ratio(us, fifo.makespan_us) for us in own] + [ratio(us, best.makespan_us) for us in (*others, listed)]
    return [100 * (change - 1) for change in changes]


def main(config: Orders) -> None:
    """Print the table: a line for each placer."""
    found = measure_cells(config.cells(), partial(measure, simulations=config.simulations))
    values: dict[str, list[np.ndarray]] = {}
    for (placer, _, _), rows in grouped(found, "placer", "graph", "cluster").items():
        values.setdefault(placer, []).append(np.mean(rows, axis=0))
    lines: list[Sequence[str]] = [HEAD]
    for placer, means in values.items():
        mean, error = np.mean(means, axis=0), np.std(means, axis=0, ddof=1) / np.sqrt(len(means))
        numbers = [f"{m:+.1f} ± {e:.1f}" for m, e in zip(mean, error, strict=True)]
        lines.append([placer, *numbers, "-" if placer in RULES else f"{config.simulations:,}"])
    print(f"{len(config.graphs)} graphs on {', '.join(config.clusters)}, {config.seeds} seeds of searches, per cent.\n")
    print(
        "Longest remaining path first against first ready first served: placed for each (placed for it), and with the\n"
        "placement that was found for fifo. Then the former's placements run otherwise.\n"
    )
    print(markdown(lines))


if __name__ == "__main__":
    command(main, Orders, "orders", __doc__)
