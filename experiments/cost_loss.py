"""What does it cost to place by one cost model where another is true?

python -m experiments.cost_loss [--graphs cifar10:test:0 ...] [--clusters 4xv100 4xa100] [--seeds 3]

True times are the table's (efficiency), each op's times a log-normal factor of its own, the same on all devices.
Graphs are placed by `multilevel` under each cost model, and what it found is simulated under the truth. The loss is
against the placement found under the truth itself with the same seed; "the truth, another seed" is what chance makes of
that.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from itertools import product

import numpy as np

from experiments.command import command
from experiments.harness import Cell, Sweep, grouped, measure_cells
from experiments.tables import markdown
from placeto.problem.cluster import Cluster
from placeto.problem.costs import EFFICIENCY, ROOFLINE, CostModel
from placeto.problem.costs.efficiency import Efficiency
from placeto.problem.graph import ComputationGraph
from placeto.problem.problem import PlacementProblem
from placeto.simulator.schedule import simulate

CHANCE = "the truth, another seed"
MODELS: dict[str, CostModel] = {
    "efficiency (default)": EFFICIENCY,
    "constant": Efficiency({}, {}, EFFICIENCY.constant, {}),
    "roofline": ROOFLINE,
}


@dataclass(frozen=True)
class Noisy:
    """Another model's times, each op's times a log-normal factor."""

    base: CostModel
    spread: float  # of the factors' logarithms
    seed: int

    @property
    def name(self) -> str:
        """With all that decides its times."""
        return f"{self.base.name} * {self.spread} {self.seed}"

    def op_time_us(self, graph: ComputationGraph, cluster: Cluster) -> np.ndarray:
        """(N, D) float64, microseconds."""
        factors = np.exp(self.spread * np.random.default_rng(self.seed).standard_normal(graph.num_ops))
        return np.asarray(self.base.op_time_us(graph, cluster) * factors[:, None])


@dataclass(frozen=True)
class CostLoss(Sweep):
    """Place under each cost model, simulate under the truth."""

    graphs: tuple[str, ...] = ("cifar10:test:0", "ptb:test:0", "nmt:test:0", "inception_v3:test:0")
    """files or family:split:index"""
    clusters: tuple[str, ...] = ("4xv100", "4xa100")
    """names or files"""
    placers: tuple[str, ...] = ("multilevel",)
    """names, or checkpoints"""
    spread: float = 0.3
    """of the logarithms of the truth's factors"""


def measure(cell: Cell, config: CostLoss) -> dict[str, float]:
    """The loss of what was placed under each cost model; the seed is that of the truth and of the search."""
    graph, cluster = cell.problem.graph, cell.problem.cluster
    truth = PlacementProblem(graph, cluster, Noisy(EFFICIENCY, config.spread, cell.seed))
    best = cell.place(truth, config.simulations).makespan_us
    other = replace(cell, seed=cell.seed + config.seeds).place(truth, config.simulations).makespan_us
    losses = {CHANCE: other / best - 1}
    for model, costs in MODELS.items():
        found = cell.place(PlacementProblem(graph, cluster, costs), config.simulations).placement
        losses[model] = simulate(truth, found).makespan_us / best - 1
    return losses


def main(config: CostLoss) -> None:
    """Place, simulate, print."""
    of_clusters = grouped(measure_cells(config.cells(), partial(measure, config=config)), "cluster")
    lines = [["placed under", "cluster", "median loss", "mean", "worst"]]
    for model, cluster in product((CHANCE, *MODELS), ("all", *config.clusters)):
        losses = [row[model] for (name,), rows in of_clusters.items() if cluster in ("all", name) for row in rows]
        lines.append([model, cluster, f"{np.median(losses):.1%}", f"{np.mean(losses):.1%}", f"{max(losses):.1%}"])
    print(f"{len(config.graphs)} graphs, {config.seeds} seeds, {config.simulations:,} simulations each.\n")
    print(markdown(lines, 2))


if __name__ == "__main__":
    command(main, CostLoss, "cost_loss", __doc__)
