"""``make bench``: how fast the simulator is, and how many simulations each placer makes in a second.

python -m experiments.bench
"""

from __future__ import annotations

import platform
import time
from dataclasses import dataclass

import numpy as np
import tyro

from placeto.cluster import load_cluster
from placeto.cost import PlacementProblem, ProblemBatch
from placeto.load import load_families, load_placer, load_split
from placeto.simulator import simulate, simulate_batch


@dataclass(frozen=True)
class BenchConfig:
    """Measure speeds on the first test graphs of each family."""

    cluster: str = "4xv100"
    """to place on"""
    graphs: int = 3
    """how many of each family"""
    placers: str = "heft,etf,hillclimb,anneal"
    """comma-separated"""
    repeat: int = 200
    """placements simulated one by one, and at once"""


def main(config: BenchConfig) -> None:
    """Print a markdown table of each."""
    print(f"{platform.processor() or platform.machine()}, Python {platform.python_version()}, {time.strftime('%F')}\n")
    cluster = load_cluster(config.cluster)
    problems = [
        PlacementProblem(graph, cluster)
        for family in load_families()
        for graph in load_split(family, "test", config.graphs).values()
    ]
    print("| graph | ops | ns per op, one placement | ns per op, batch of all |\n|---|---:|---:|---:|")
    for problem in problems:
        one, batch = _simulator_ns(problem, config.repeat)
        print(f"| {problem.graph.name} | {problem.num_ops} | {one:.0f} | {batch:.0f} |", flush=True)
    print("\n| placer | graph | simulations | seconds |\n|---|---|---:|---:|")
    for name in config.placers.split(","):
        placer = load_placer(name)
        placer(problems[0], simulations=10)  # compile
        for problem in problems:
            result = placer(problem, simulations=1000)
            print(f"| {name} | {problem.graph.name} | {result.simulations} | {result.seconds:.3f} |", flush=True)


def _simulator_ns(problem: PlacementProblem, repeat: int) -> tuple[float, float]:
    """Nanoseconds per op: one placement at a time, and all in one batch on all cores."""
    placements = np.random.default_rng(0).integers(problem.num_devices, size=(repeat, problem.num_ops))
    batch = ProblemBatch.of([problem])
    simulate(problem, placements[0])
    simulate_batch(batch, np.zeros(2, np.int64), placements[:2])
    began = time.perf_counter()
    for placement in placements:
        simulate(problem, placement)
    middle = time.perf_counter()
    simulate_batch(batch, np.zeros(repeat, np.int64), placements)
    end = time.perf_counter()
    return (middle - began) / (repeat * problem.num_ops) * 1e9, (end - middle) / (repeat * problem.num_ops) * 1e9


if __name__ == "__main__":
    main(tyro.cli(BenchConfig, prog="python -m experiments.bench"))
