"""How fast the placers are on the graphs of the families that ship, at 1000 simulations (a part of ``make bench``).

python -m experiments.bench
"""

from __future__ import annotations

import platform
import time
from dataclasses import dataclass

from experiments.command import command
from graphs import SHIPPED
from placeto.placers import load_placer, load_split
from placeto.problem.cluster import load_cluster
from placeto.problem.problem import PlacementProblem


@dataclass(frozen=True)
class BenchConfig:
    """Measure speeds on the first test graphs of each family that ships."""

    cluster: str = "4xv100"
    """to place on"""
    graphs: int = 3
    """how many of each family"""
    placers: str = "heft,etf,hillclimb,anneal"
    """comma-separated"""


def main(config: BenchConfig) -> None:
    """Print a markdown table."""
    print(f"{platform.processor() or platform.machine()}, Python {platform.python_version()}, {time.strftime('%F')}\n")
    cluster = load_cluster(config.cluster)
    problems = [
        PlacementProblem(graph, cluster)
        for family in SHIPPED
        for graph in load_split(family, "test", config.graphs).values()
    ]
    print("| placer | graph | simulations | seconds |\n|---|---|---:|---:|")
    for name in config.placers.split(","):
        placer = load_placer(name)
        placer(problems[0], simulations=10)  # compile
        for problem in problems:
            result = placer(problem, simulations=1000)
            print(f"| {name} | {problem.graph.name} | {result.simulations} | {result.seconds:.3f} |", flush=True)


if __name__ == "__main__":
    command(main, BenchConfig, "bench", __doc__)
