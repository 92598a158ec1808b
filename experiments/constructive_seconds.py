"""How long does the constructive policy take for an answer, on small and large graphs, and what takes the time?

python -m experiments.constructive_seconds [--graphs transformer_xl-2:test:0 ...]

For each graph: core milliseconds of the grouping, of what the network reads, of the most likely placement and of 24
samples, and of one simulation. Beside it stand all cheap heuristics, of which the best is taken, with the grouping done
before. The network isn't trained: its weights change no time. Each time is the least of some repetitions.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
import tyro

from experiments.command import command
from experiments.harness import problem_of
from experiments.tables import Table, machine, markdown
from placeto.heuristics.local_search.starts import best_cheap
from placeto.policies.one_shot.constructive import ConstructiveConfig, ConstructivePolicy
from placeto.policies.one_shot.inputs import make_input
from placeto.problem.costs import load_costs
from placeto.problem.grouping import group_ops
from placeto.problem.problem import PlacementProblem
from placeto.simulator.evaluator import Evaluator
from placeto.simulator.schedule import simulate

SAMPLES = 24


@dataclass(frozen=True)
class ConstructiveSeconds:
    """Place graphs of different sizes, and measure how long the parts take."""

    graphs: Annotated[tuple[str, ...], tyro.conf.arg(metavar="GRAPH")] = (
        "transformer_xl-2:test:0",
        "rnnlm-2:test:0",
        "gnmt-4:test:0",
    )
    """files or family:split:index"""
    cluster: str = "4xv100"
    """to place on"""
    repeats: int = 3
    """of which the least time counts"""


def row(graph: str, config: ConstructiveSeconds, policy: ConstructivePolicy) -> list[str]:
    """Ops, groups, and core milliseconds."""
    known = problem_of(graph, config.cluster)

    def least(part: Callable[[PlacementProblem], object], *before: Callable[[PlacementProblem], object]) -> float:
        times = []
        for _ in range(config.repeats):
            problem = PlacementProblem(known.graph, known.cluster, load_costs("efficiency"))  # nothing is kept for it
            for earlier in before:
                earlier(problem)
            began = time.process_time()
            part(problem)
            times.append(1e3 * (time.process_time() - began))
        return min(times)

    described = make_input(known, policy.units)
    placement = policy.sample(described, 1, None).placement[0].numpy()[described.unit.numpy()]
    parts = [
        least(group_ops),
        least(lambda problem: make_input(problem, policy.units), group_ops),
        least(lambda problem: policy.sample(described, 1, None)),
        least(lambda problem: policy.sample(described, SAMPLES, torch.Generator().manual_seed(0))),
        least(lambda problem: simulate(problem, placement), warm),
        least(lambda problem: best_cheap(Evaluator(problem, group_ops(problem))), group_ops, warm),
    ]
    return [graph, f"{known.num_ops:,}", str(described.num_units), *(f"{spent:.1f}" for spent in parts)]


def warm(problem: PlacementProblem) -> None:
    """Make what every simulation of a problem reads."""
    simulate(problem, np.zeros(problem.num_ops, np.int64))


def main(config: ConstructiveSeconds) -> None:
    """Print the table."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    policy = ConstructivePolicy(ConstructiveConfig()).eval()
    head = ["graph", "ops", "groups", "grouping", "input", "most likely", "samples", "simulation", "all rules"]
    row(config.graphs[0], config, policy)  # compiles
    lines: Table = [head, *(row(graph, config, policy) for graph in config.graphs)]
    print(f"On {config.cluster}, core milliseconds, the least of {config.repeats}; {SAMPLES} samples; {machine()}.\n")
    print(markdown(lines))


if __name__ == "__main__":
    command(main, ConstructiveSeconds, "constructive_seconds", __doc__)
