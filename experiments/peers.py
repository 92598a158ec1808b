"""How do the placers stand beside other projects', on graphs and by rules of theirs?

python -m experiments.peers [--data FOLDER]

Makespans on four equal devices whose links are free: a tensor takes its producer's time to each other device, whatever
else is on its way. The graphs are those that DOPPLER publishes (ICLR 2026; a folder of its files, --data), beside what
its paper and its code reached there: its learning trains on each graph for hundreds of episodes. Placers that draw lots
do so with several seeds. None of these graphs has modules or fills the memory, so `anneal` does the same as
`multilevel`, and `m-etf` as `etf`; for `exact`, which takes up to 64 groups, they are too large.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from experiments.command import command
from experiments.harness import measure_cells
from experiments.tables import Table, markdown, mean_and_spread
from placeto.formats.importers import find_importer
from placeto.heuristics.list_scheduling import upward_rank
from placeto.placers import load_placer, zero_shot
from placeto.problem.cluster import Cluster, Device
from placeto.problem.graph import ComputationGraph
from placeto.problem.problem import PlacementProblem
from placeto.simulator.evaluator import Evaluator

DEVICES = 4
UNITS = 1e10
"""A unit of DOPPLER's tables, in its files' units, which are read as microseconds."""
PUBLISHED: dict[str, dict[str, float]] = {
    "critical path, best of 50, published": {
        "full_transformer_layer": 198.7,
        "transformer_block": 226.5,
        "ffnn": 83.97,
        "chain_mm": 1400.0,
    },
    "DOPPLER, 450 to 1,500 episodes a graph, published": {
        "full_transformer_layer": 187.6,
        "transformer_block": 226.5,
        "ffnn": 77.5,
        "chain_mm": 1500.0,
    },
}
CONSTRUCTIVE = ("metis", "heft", "etf")
SEARCHES = ("multilevel", "placeto")
DISPATCHES = {"fifo": "first ready, first served", "priority": "the longest remaining path first"}

Placed = Callable[[PlacementProblem, int], float]
"""A problem and a seed -> makespan in microseconds."""


@dataclass(frozen=True)
class Peers:
    """Place the graphs of others by their rules."""

    data: Path = Path("../shared/data/doppler")
    """folder with DOPPLER's graphs (or .stg files)"""
    simulations: int = 1000
    """of each search"""
    seeds: int = 3
    """of what draws lots"""
    tries: int = 50
    """of the critical-path heuristic"""


def equal_devices(count: int, dispatch: str = "fifo") -> Cluster:
    """The machine of the scheduling literature: equal devices, and free links of 1 byte/us between any two."""
    devices = tuple(Device(f"device:{i}", "processor", 1e12, 1e12, 2**60) for i in range(count))
    matrix = np.ones((count, count))
    return Cluster(f"{count} equal devices", devices, matrix, np.zeros_like(matrix), link="free", dispatch=dispatch)


def critical_path(problem: PlacementProblem, tries: int, seed: int) -> float:
    """Least makespan of so many list schedules: of what is ready the longest path first, where it starts first.

    Ties go by lot: most of these graphs' nodes are one of many alike.
    """
    random, evaluator = np.random.default_rng(seed), Evaluator(problem, None)
    graph, rank, busy = problem.graph, upward_rank(problem), problem.busy_us[:, 0]
    ptr = np.searchsorted(graph.edge_dst, np.arange(graph.num_ops + 1))
    sent_us, devices = graph.output_bytes[graph.edge_tensor], np.arange(problem.num_devices)
    consumers: list[list[int]] = [[] for _ in range(graph.num_ops)]
    for src, dst in zip(graph.edge_src.tolist(), graph.edge_dst.tolist(), strict=True):
        consumers[src].append(dst)
    for _ in range(tries):
        placement, end, free = np.zeros(graph.num_ops, np.int64), np.zeros(graph.num_ops), np.zeros(len(devices))
        missing = np.bincount(graph.edge_dst, minlength=graph.num_ops)
        ready = np.flatnonzero(missing == 0).tolist()
        while ready:
            op = random.choice([op for op in ready if rank[op] == rank[ready].max()])
            ready.remove(op)
            edges = slice(ptr[op], ptr[op + 1])
            sources = graph.edge_src[edges]
            away = placement[sources][:, None] != devices
            start = np.maximum(free, (end[sources][:, None] + away * sent_us[edges][:, None]).max(axis=0, initial=0.0))
            placement[op] = device = random.choice(np.flatnonzero(start == start.min()))
            end[op] = free[device] = start[device] + busy[op]
            for consumer in consumers[op]:
                missing[consumer] -= 1
                if missing[consumer] == 0:
                    ready.append(consumer)
        evaluator.score_ops(placement)
    return evaluator.best_score


def placers(config: Peers) -> dict[str, tuple[Placed, int]]:
    """What is compared: name -> how it places, and with how many seeds."""

    def constructed(name: str, problem: PlacementProblem, seed: int) -> float:
        return load_placer(name)(problem, seed=seed).makespan_us

    def searched(name: str, problem: PlacementProblem, seed: int) -> float:
        return load_placer(name)(problem, simulations=config.simulations, seed=seed).makespan_us

    def passed(problem: PlacementProblem, seed: int) -> float:
        return zero_shot(load_placer("placeto"), problem, seed).makespan_us

    best_of = f"critical path, best of {config.tries}"
    found: dict[str, tuple[Placed, int]] = {"one device": (lambda problem, _: problem.single_device_us, 1)}
    found |= {best_of: (lambda problem, seed: critical_path(problem, config.tries, seed), config.seeds)}
    found |= {name: (partial(constructed, name), 1) for name in CONSTRUCTIVE}
    found |= {"placeto, one pass": (passed, 1)}
    return found | {f"{name}, {config.simulations}": (partial(searched, name), config.seeds) for name in SEARCHES}


def published_graphs(folder: Path) -> dict[str, ComputationGraph]:
    """The graphs of a folder that an importer knows, by the name of the file without its count of nodes."""
    paths = [(path, find_importer(path)) for path in sorted(folder.iterdir()) if path.is_file()]
    return {path.stem.rpartition("_")[0] or path.stem: found.load(path) for path, found in paths if found is not None}


def makespans(config: Peers, graphs: Iterable[ComputationGraph], dispatch: str) -> dict[str, list[list[float]]]:
    """Placer -> for each graph the makespans in microseconds of its seeds, then those of the lower bound."""
    cluster, known = equal_devices(DEVICES, dispatch), placers(config)
    problems = [PlacementProblem(graph, cluster) for graph in graphs]

    def of_graphs(name: str) -> list[list[float]]:
        place, seeds = known[name]
        return [[place(problem, seed) for seed in range(seeds)] for problem in problems]

    found = measure_cells(known, of_graphs, f"placing, {dispatch}")
    return found | {"lower bound": [[problem.lower_bound_us] for problem in problems]}


def published_table(names: list[str], found: Mapping[str, list[list[float]]]) -> Table:
    """Makespans of each placer on each graph in DOPPLER's units, those that are published at the end."""
    table = [["placer", *names]]
    for placer, of_graphs in found.items():
        table.append([placer, *(mean_and_spread([us / UNITS for us in seeds], ".2f") for seeds in of_graphs)])
    for placer, known in PUBLISHED.items():
        table.append([placer, *(f"{known[name]:g}" if name in known else "" for name in names)])
    return table


def main(config: Peers) -> None:
    """Print the tables."""
    graphs = published_graphs(config.data)
    for dispatch, words in DISPATCHES.items():
        found = makespans(config, graphs.values(), dispatch)
        print(f"DOPPLER's graphs, {words}; in units of its paper, mean and spread of {config.seeds} seeds\n")
        print(f"{markdown(published_table(list(graphs), found))}\n")


if __name__ == "__main__":
    command(main, Peers, "peers", __doc__)
