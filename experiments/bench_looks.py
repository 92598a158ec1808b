"""What a look of the policy costs beside a simulation: `python -m experiments.bench_looks`.

A look is what guided search does before it tries a move: the simulation and description of a placement (observation)
and the predictions of the network, all groups unvisited. Of groups, and of up to 1,000 parts of them, where a graph has
so many. One core; of many rounds the fastest counts.

Legend: N ops, D devices.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Annotated

import numba
import numpy as np
import tyro

from experiments.bench_simulator import best_of
from experiments.command import command
from experiments.rows import problem_of
from experiments.tables import Table, machine, markdown
from placeto.environment.instance import Instance, InstanceBatch, make_instance
from placeto.environment.observation import look
from placeto.heuristics.local_search.annealing import parts_of
from placeto.policies.compiled import CompiledPolicy
from placeto.policies.weights import load_weights
from placeto.pretrained import pretrained_path
from placeto.simulator.memory import score
from placeto.simulator.threads import one_thread


@dataclass(frozen=True)
class LooksConfig:
    """Measure looks and simulations."""

    graphs: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME")] = (
        "ptb:test:0",
        "cifar10:test:0",
        "bert:test:0",
        "inception_v3:test:0",
        "nasnet:test:0",
        "gnmt-2:test:0",
        "llama:test:0",
        "gnmt-4:test:0",
        "gnmt-8:test:0",
    )
    """on which"""
    clusters: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME")] = ("4xv100", "8xh100")
    """for which they are placed"""
    seconds: float = 0.5
    """how long each number is measured, or three rounds if they take longer"""


def shipped() -> CompiledPolicy:
    """The network of the package's checkpoint."""
    path = pretrained_path("placeto")
    assert path is not None
    saved = load_weights(path)
    policy = saved["config"]["policy"]
    return CompiledPolicy(saved["best_parameters"], policy["rounds"], policy["change_weight"])


def bench(instance: Instance, policy: CompiledPolicy, seconds: float) -> tuple[float, float, float]:
    """Seconds of a simulation, of an observation, and of the network, at placements at random."""
    problem, groups = instance.problem, instance.groups
    batch, nobody = InstanceBatch.of([instance]), np.zeros(groups.num_groups, bool)
    rows = np.random.default_rng(0).integers(problem.num_devices, size=(4, groups.num_groups))
    seen = look(batch, rows[0], nobody)

    def simulation(row: np.ndarray) -> None:
        score(problem.arrays, 0, row[groups.group], np.inf)

    def observation(row: np.ndarray) -> None:
        look(batch, row, nobody)

    def network(_: np.ndarray) -> None:
        policy(seen.node, seen.pair, seen.arcs, seen.edge, seen.current, seen.offered)

    one, two, three = best_of(seconds, rows, simulation, observation, network)
    return one, two, three


def table(config: LooksConfig) -> Table:
    """A line for each graph, cluster and level."""
    head = ["graph", "N", "D", "policy sees", "simulation, ms", "observation, ms", "network, ms"]
    head += ["simulations a second", "looks a second", "simulations a look"]
    lines = [head, ["---", "---:", "---:", "---", *["---:"] * 6]]
    policy = shipped()
    for graph in config.graphs:
        for cluster in config.clusters:
            problem = problem_of(graph, cluster)
            instance = make_instance(problem)
            parts = parts_of(problem, instance.groups)
            split = parts.num_groups > instance.groups.num_groups
            for name, one in (("groups", instance), ("parts", make_instance(problem, parts)))[: 1 + split]:
                times = bench(one, policy, config.seconds)
                looked = times[1] + times[2]
                line = [graph, f"{problem.num_ops:,}", f"{problem.num_devices}", f"{one.groups.num_groups:,} {name}"]
                line += [f"{1e3 * time:.2f}" for time in times]
                lines.append([*line, f"{1 / times[0]:,.0f}", f"{1 / looked:,.0f}", f"{looked / times[0]:.1f}"])
            print(f"{graph} on {cluster}", file=sys.stderr)
    return lines


def main(config: LooksConfig) -> None:
    """Print the table."""
    threads = numba.get_num_threads()
    numba.set_num_threads(1)
    try:
        with one_thread():
            print(f"One core of {machine()}.\n\n{markdown(table(config))}")
    finally:
        numba.set_num_threads(threads)


if __name__ == "__main__":
    command(main, LooksConfig, "bench_looks", __doc__)
