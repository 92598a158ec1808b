"""How fast the simulator is: `python -m experiments.bench_simulator` (two minutes on an idle machine).

Random layered graphs, random placements in turn (with a single one, the branch predictor learns a small graph by
heart), the constants of the `k80` presets; of each placement the fastest of many rounds counts. Nanoseconds are per op
and of one thread in the kernels: the schedule, then what slack and the timeline of memory add to it. "per second" is
`simulate_batch`, checks included, where all fits in memory, so that no timeline is worked out. "plain" is the reference
simulator of the tests, which shares no code, on one of the placements.

Legend: N ops, D devices.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from experiments.command import command
from experiments.tables import markdown
from placeto.problem.cluster import Cluster, load_cluster
from placeto.problem.graph import ComputationGraph
from placeto.problem.problem import PlacementProblem
from placeto.simulator import kernel, memory
from placeto.simulator.schedule import simulate_batch
from placeto.simulator.slack import fill_slack
from placeto.simulator.threads import set_threads, threads
from tests.reference import reference

THREADS = threads()
MODES = {
    "k80": ("broadcast", "egress", "fifo"),
    "unicast egress": ("unicast", "egress", "fifo"),
    "unicast pair": ("unicast", "pair", "fifo"),
    "pair, priority": ("unicast", "pair", "priority"),
    "pair, list": ("unicast", "pair", "list"),
}
HEAD = ("N", "D", "mode", "ns", "+ slack", "+ memory", "per second", "2 threads", "gain", "plain ns", "ratio")
START = """
import time
begin = time.perf_counter()
import numpy as np
from placeto import PlacementProblem, ComputationGraph, load_cluster, simulate
from placeto.simulator.schedule import simulate_batch
from placeto.simulator.slack import fill_slack
problem = PlacementProblem(ComputationGraph.from_ops("one", [{"name": "a"}]), load_cluster("2xk80"))
imported = time.perf_counter()
simulate(problem, np.array([0]))
first = time.perf_counter()
simulate_batch(problem, np.array([[0]]))
print(imported - begin, first - imported, time.perf_counter() - first)
"""


@dataclass(frozen=True)
class BenchConfig:
    """Measure the simulator."""

    sizes: tuple[int, ...] = (500, 10_000)
    """numbers of ops"""
    devices: tuple[int, ...] = (2, 4, 8)
    """numbers of devices"""
    seconds: float = 0.25
    """how long each number is measured, or three rounds if they take longer"""
    starts: int = 3
    """how many fresh processes start with a filled cache; the best counts"""


def random_graph(num_ops: int, seed: int = 0) -> ComputationGraph:
    """Each op reads one or two of the 40 ops before it; times up to 120 us, tensors up to 2 MB."""
    rng = np.random.default_rng(seed)
    ops = []
    for i in range(num_ops):
        parents = sorted(set(rng.integers(max(0, i - 40), i, rng.integers(1, 3)).tolist())) if i else []
        ops.append(
            {
                "name": f"op{i}",
                "flops": float(rng.uniform(1e6, 5e8)),
                "outputs": [int(rng.uniform(1e4, 2e6))],
                "inputs": [[f"op{parent}", 0] for parent in parents],
            }
        )
    return ComputationGraph.from_ops(f"random-{num_ops}", ops)


def k80_cluster(num_devices: int, transfers: str, link: str, dispatch: str) -> Cluster:
    """K80 dies with room for everything, with links and dispatch of the given mode."""
    cluster = load_cluster(f"{num_devices}xk80")
    devices = tuple(replace(device, memory=10**15) for device in cluster.devices)
    return replace(cluster, devices=devices, transfers=transfers, link=link, dispatch=dispatch)


def best_of(seconds: float, rows: np.ndarray, *functions: Callable[[np.ndarray], object]) -> list[float]:
    """Seconds of each function: the mean over rows of its fastest call. They take turns, so noise meets all alike."""
    best = np.full((len(functions), len(rows)), np.inf)
    begin, rounds = time.perf_counter(), 0
    while rounds < 3 or time.perf_counter() - begin < seconds * len(functions):
        rounds += 1
        for times, function in zip(best, functions, strict=True):
            for number, row in enumerate(rows):
                start = time.perf_counter()
                function(row)
                times[number] = min(times[number], time.perf_counter() - start)
    return best.mean(axis=1).tolist()


def bench(graph: ComputationGraph, num_devices: int, mode: str, seconds: float) -> tuple[str, ...]:
    """One row of the table."""
    problem = PlacementProblem(graph, k80_cluster(num_devices, *MODES[mode]))
    count = min(64, max(4, 100_000 // graph.num_ops))
    placements = np.random.default_rng(1).integers(0, num_devices, (count, graph.num_ops))
    flat, record = problem.arrays, kernel.new_record(problem.arrays)
    op_slack, send_slack = np.empty(graph.num_ops), np.empty(graph.num_edges)
    peak = np.zeros(num_devices, np.int64)

    def schedule(row: np.ndarray) -> None:
        kernel.run(flat, row, record, np.inf)

    def with_slack(row: np.ndarray) -> None:
        makespan, num_sends = kernel.run(flat, row, record, np.inf)
        fill_slack(flat, row, record, num_sends, makespan, op_slack, send_slack)

    def with_memory(row: np.ndarray) -> None:
        _, num_sends = kernel.run(flat, row, record, np.inf)
        memory.peak_memory(flat, row, record, num_sends, peak)

    def in_threads(number: int) -> Callable[[np.ndarray], object]:
        def run(rows: np.ndarray) -> None:
            set_threads(1, number)
            simulate_batch(problem, rows)

        return run

    runs = [taken / graph.num_ops * 1e9 for taken in best_of(seconds, placements, schedule, with_slack, with_memory)]
    batches = map(in_threads, range(1, min(2, THREADS) + 1))
    one, *two = (count / taken for taken in best_of(seconds, placements[None], *batches))
    plain_ns = best_of(0.0, placements[:1], lambda row: reference(problem, row))[0] / graph.num_ops * 1e9
    return (
        f"{graph.num_ops:,}",
        str(num_devices),
        mode,
        f"{runs[0]:.0f}",
        f"{max(0.0, runs[1] - runs[0]):.0f}",
        f"{max(0.0, runs[2] - runs[0]):.0f}",
        f"{one:,.0f}",
        f"{two[0]:,.0f}" if two else "-",
        f"{two[0] / one:.2f}" if two else "-",
        f"{plain_ns:,.0f}",
        f"{plain_ns / runs[0]:.0f}x",
    )


def start(count: int) -> list[tuple[str, ...]]:
    """Seconds a fresh process takes to first results, with an empty cache and with a filled one (best of `count`)."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for label, repeats in (("empty", 1), ("filled", count)):
            runs = []
            for _ in range(repeats):
                environment = {**os.environ, "NUMBA_CACHE_DIR": folder}
                output = subprocess.run([sys.executable, "-c", START], env=environment, capture_output=True, check=True)
                runs.append(tuple(map(float, output.stdout.split())))
            best = min(runs, key=sum)
            rows.append((label, *(f"{seconds:.2f}" for seconds in best)))
    return rows


def main(config: BenchConfig) -> None:
    """Print the machine, the start times and the table."""
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}\n")
    head = ("cache", "import s", "first simulate s", "first simulate_batch s")
    print(markdown([head, *start(config.starts)]) + "\n")
    rows: list[Sequence[str]] = [HEAD]
    for num_ops in config.sizes:
        graph = random_graph(num_ops)
        for num_devices in config.devices:
            for mode in MODES:
                rows.append(bench(graph, num_devices, mode, config.seconds))
                print(f"{num_ops:,} ops, {num_devices} devices, {mode}", file=sys.stderr)
    print(markdown(rows))


if __name__ == "__main__":
    command(main, BenchConfig, "bench_simulator", __doc__)
