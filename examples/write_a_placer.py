"""Writes a placer, and compares it with others at an equal budget.

    python examples/write_a_placer.py

A placer is a function from a problem and a budget to a placement. This one moves one random group at a time, and keeps
the moves that make the makespan shorter. `Evaluator` counts the simulations and keeps the best placement.
"""

from __future__ import annotations

import argparse

import numpy as np

from placeto import PlacementProblem, PlacementResult, load_cluster, load_placer
from placeto.placers import resolve_graph
from placeto.simulator.evaluator import Evaluator


def one_by_one(
    problem: PlacementProblem, *, simulations: int | None = None, seconds: float | None = None, seed: int = 0
) -> PlacementResult:
    """Moves a random group to a random device, as long as the budget lasts; begins with all groups on one device."""
    if simulations is None and seconds is None:
        simulations = 300
    evaluator = Evaluator(problem, simulations=simulations, seconds=seconds)
    random = np.random.default_rng(seed)
    here = np.zeros(evaluator.groups.num_groups, np.int64)  # (G,) device of each group
    best = evaluator.score(here)
    while not evaluator.exhausted:
        there = here.copy()
        there[random.integers(len(here))] = random.integers(problem.num_devices)
        if (score := evaluator.score(there)) < best:  # a penalised makespan: longer where the memory is exceeded
            here, best = there, score
    return evaluator.result()


def main(graph: str, cluster: str, simulations: int) -> dict[str, float]:
    """Place a graph by some placers; returns makespans, relative to the best single device."""
    problem = PlacementProblem(resolve_graph(graph)[1], load_cluster(cluster))
    placers = {"one by one": one_by_one} | {name: load_placer(name) for name in ("etf", "hillclimb", "placeto")}
    found = {}
    for name, place in placers.items():
        result = place(problem, simulations=simulations)
        found[name] = result.makespan_us / problem.single_device_us
        print(f"{name:<12} {found[name]:.3f} of the best single device, {result.simulations} simulations")
    print(f"{'bound':<12} {problem.lower_bound_us / problem.single_device_us:.3f}")
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--graph", default="ptb:test:0", help="family:split:index, or a graph file")
    parser.add_argument("--cluster", default="4xv100", help="a name from `placeto list clusters`, or a file")
    parser.add_argument("--simulations", type=int, default=300)
    settings = parser.parse_args()
    main(settings.graph, settings.cluster, settings.simulations)
