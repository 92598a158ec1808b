"""What does it cost to place by one cost model where another is true?

python -m experiments.cost_loss [--graphs cifar10:test:0 ...] [--clusters 4xv100 4xa100] [--seeds 3]

True times are the table's (efficiency), each op's times a log-normal factor of its own, the same on all devices.
Graphs are placed by `multilevel` under each cost model, and what it found is simulated under the truth. The loss is
against the placement found under the truth itself with the same seed; "the truth, another seed" is what chance makes of
that.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from itertools import product

import numpy as np

from experiments.command import command
from experiments.tables import markdown, rule
from placeto.placers import load_placer, resolve_graph
from placeto.problem.cluster import Cluster, load_cluster
from placeto.problem.costs import EFFICIENCY, ROOFLINE, CostModel
from placeto.problem.costs.efficiency import Efficiency
from placeto.problem.graph import ComputationGraph
from placeto.problem.problem import PlacementProblem
from placeto.progress import ProgressBar
from placeto.simulator.schedule import simulate


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
class CostLoss:
    """Place under each cost model, simulate under the truth."""

    graphs: tuple[str, ...] = ("cifar10:test:0", "ptb:test:0", "nmt:test:0", "inception_v3:test:0")
    """files or family:split:index"""
    clusters: tuple[str, ...] = ("4xv100", "4xa100")
    """names or files"""
    simulations: int = 1000
    """of each search"""
    spread: float = 0.3
    """of the logarithms of the truth's factors"""
    seeds: int = 3
    """of the truth and of the search"""


def main(config: CostLoss) -> None:
    """Place, simulate, print."""
    models: dict[str, CostModel] = {
        "efficiency (default)": EFFICIENCY,
        "constant": Efficiency({}, {}, EFFICIENCY.constant, {}),
        "roofline": ROOFLINE,
    }
    placer, losses = load_placer("multilevel"), defaultdict(list)
    cases = list(product(config.graphs, config.clusters, range(config.seeds)))
    with ProgressBar("placing", total=len(cases)) as bar:
        for name, cluster_name, seed in cases:
            graph, cluster = resolve_graph(name)[1], load_cluster(cluster_name)
            truth = PlacementProblem(graph, cluster, Noisy(EFFICIENCY, config.spread, seed))
            best = placer(truth, simulations=config.simulations, seed=seed).makespan_us
            other = placer(truth, simulations=config.simulations, seed=seed + config.seeds).makespan_us
            losses["the truth, another seed", cluster_name].append(other / best - 1)
            for model, costs in models.items():
                problem = PlacementProblem(graph, cluster, costs)
                found = placer(problem, simulations=config.simulations, seed=seed).placement
                losses[model, cluster_name].append(simulate(truth, found).makespan_us / best - 1)
            bar.advance(note=f"{name} on {cluster_name}")
    print(f"{len(config.graphs)} graphs, {config.seeds} seeds, {config.simulations:,} simulations each.\n")
    head = ["placed under", "cluster", "median loss", "mean", "worst"]
    rows = []
    for model in ("the truth, another seed", *models):
        for place in ("all", *config.clusters):
            of = [loss for (m, c), found in losses.items() if m == model and place in ("all", c) for loss in found]
            rows.append([model, place, f"{np.median(of):.1%}", f"{np.mean(of):.1%}", f"{max(of):.1%}"])
    print(markdown([head, ["---", *rule(len(head) - 1)], *rows]))


if __name__ == "__main__":
    command(main, CostLoss, "cost_loss", __doc__)
