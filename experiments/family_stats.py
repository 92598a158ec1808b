"""What the graphs of the families are like on a cluster, and how much placement matters there.

python -m experiments.family_stats [--cluster 4xv100] [--simulations 3000] [--graphs 1] [--each]

Per family and split, means over its graphs:

- parallelism: total work / critical path, both with the time that a device takes per op;
- transfer/compute: the time to send every tensor that is used once over the mean link / total work;
- memory: peak with all ops on the first device / its memory; the largest of the split in brackets;
- makespans relative to the best single device: the lower bound, the best of the cheap heuristics per graph, and
  annealing; in brackets the share of graphs on which annealing is at least 15 % faster than one device.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Annotated

import numpy as np
import tyro

from experiments.command import command
from graphs import FAMILIES, SHIPPED
from placeto.heuristics import HEURISTICS
from placeto.problem.cluster import load_cluster
from placeto.problem.grouping import group_ops
from placeto.problem.problem import PlacementProblem
from placeto.simulator.schedule import simulate

CHEAP = ("metis", "expert", "heft", "etf")


@dataclass(frozen=True)
class Statistics:
    """Of one graph on one cluster."""

    ops: float
    groups: float
    one_device_ms: float
    parallelism: float
    transfer_to_compute: float
    overhead: float  # share of the makespan on one device
    memory: float  # share of one device's
    lower_bound: float  # this and the rest: relative to one device
    cheap: float  # best of `CHEAP`
    anneal: float


@dataclass(frozen=True)
class StatisticsConfig:
    """Statistics of the graph families."""

    families: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME")] = tuple(SHIPPED)
    """which families"""
    splits: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME")] = ("train", "validation", "test")
    """which splits"""
    graphs: int | None = None
    """only the first so many of each split"""
    cluster: str = "4xv100"
    """cluster name or file"""
    simulations: int = 3000
    """of annealing"""
    each: bool = False
    """print every graph too"""


def measure(problem: PlacementProblem, simulations: int) -> Statistics:
    """Statistics of one problem; annealing gets `simulations`."""
    graph, cluster, one = problem.graph, problem.cluster, problem.single_device_us
    work = problem.op_time.min(axis=1)
    overhead = np.where(work > 0.0, cluster.overhead_us.min(), 0.0)
    off = ~np.eye(cluster.num_devices, dtype=bool)
    used = np.unique(graph.edge_tensor)
    bandwidth = cluster.bandwidth[off].mean() if off.any() else np.inf
    start = np.zeros(graph.num_ops, np.int64)
    cheap = [HEURISTICS[name](problem) for name in CHEAP]
    annealed = HEURISTICS["anneal"](problem, simulations=simulations)
    return Statistics(
        ops=graph.num_ops,
        groups=group_ops(problem).num_groups,
        one_device_ms=one / 1e3,
        parallelism=float((work + overhead).sum()) / _critical_path(problem, work + overhead),
        transfer_to_compute=float(graph.output_bytes[used].sum() / bandwidth / work.sum()),
        overhead=float(overhead.sum()) / one,
        memory=float(simulate(problem, start).peak_memory[0] / cluster.memory[0]),
        lower_bound=problem.lower_bound_us / one,
        cheap=min([1.0, *(result.makespan_us / one for result in cheap if result.fits)]),
        anneal=annealed.makespan_us / one if annealed.fits else np.inf,
    )


def _critical_path(problem: PlacementProblem, busy_us: np.ndarray) -> float:
    """Longest path through ops that take (N,) microseconds."""
    graph = problem.graph
    end = busy_us.copy()
    starts = np.searchsorted(graph.edge_dst, np.arange(graph.num_ops + 1))
    for op in graph.topological_order:
        sources = graph.edge_src[starts[op] : starts[op + 1]]
        if len(sources):
            end[op] += end[sources].max()
    return float(end.max())


def row(name: str, found: Sequence[Statistics]) -> str:
    """One line of the table."""
    values = {f.name: np.array([getattr(s, f.name) for s in found]) for f in fields(Statistics)}
    mean = {key: value.mean() for key, value in values.items()}

    def spread(key: str, digits: int) -> str:
        low, high = (f"{value:.{digits}f}" for value in (values[key].min(), values[key].max()))
        return f" ({low}-{high})" if len(found) > 1 else ""

    cells = [
        name,
        f"{mean['ops']:.0f}{spread('ops', 0)}",
        f"{mean['groups']:.0f}{spread('groups', 0)}",
        f"{mean['one_device_ms']:.0f}",
        f"{mean['parallelism']:.2f}{spread('parallelism', 1)}",
        f"{mean['transfer_to_compute']:.2f}",
        f"{mean['overhead']:.2f}",
        f"{mean['memory']:.2f}" + (f" ({values['memory'].max():.2f})" if len(found) > 1 else ""),
        f"{mean['lower_bound']:.3f}",
        f"{mean['cheap']:.3f}",
        f"{mean['anneal']:.3f}{spread('anneal', 2)}",
        f"{(values['anneal'] <= 0.85).mean():.0%}",
    ]
    return f"| {' | '.join(cells)} |"


def main(config: StatisticsConfig) -> None:
    """Print the table."""
    cluster = load_cluster(config.cluster)
    heads = ["graphs", "ops", "groups", "one device, ms", "parallelism", "transfer/compute", "overhead", "memory"]
    heads += ["lower bound", "best cheap", f"anneal@{config.simulations}", ">= 15 % faster"]
    print(f"Cluster {cluster.name}, {time.strftime('%Y-%m-%d')}\n\n| {' | '.join(heads)} |")
    print("|" + "---|" * len(heads), flush=True)
    for family in config.families:
        for split in config.splits:
            found = []
            for index in range(FAMILIES[family].splits[split])[: config.graphs]:
                problem = PlacementProblem(FAMILIES[family].load(split, index), cluster)
                found.append(measure(problem, config.simulations))
                if config.each:
                    print(row(f"{family}:{split}:{index}", found[-1:]), flush=True)
            print(row(f"{family} {split}", found), flush=True)


if __name__ == "__main__":
    command(main, StatisticsConfig, "family_stats", __doc__)
