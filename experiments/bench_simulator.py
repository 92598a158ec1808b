"""How fast the simulator is: `python -m experiments.bench_simulator` (about a minute).

Random layered graphs, random placements, best of 5. "ns/op" is one thread in the kernel; "simulate" adds the Python
wrapper; "batch" is `simulate_batch` over many placements, memory included; "plain" is how many times longer the
plain reference in tests/ takes than `simulate`.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

import numba
import numpy as np
from rich.console import Console
from rich.table import Table

from placeto import _kernel
from placeto.cluster import load_cluster
from placeto.cost import PlacementProblem, ProblemBatch
from placeto.graph import ComputationGraph
from placeto.simulator import simulate, simulate_batch
from tests.reference import reference

SIZES = (100, 500, 5_000, 60_000)
# Broadcast and unicast through one link per sender, and one link per pair of devices.
CLUSTERS = ("2xk80", "4xk80", "8xk80", "4xp100", "4xv100", "8xv100")
PLAIN_LIMIT = 500  # ops; the plain reference is too slow beyond
START = """
import time
begin = time.perf_counter()
import numpy as np
from placeto.cluster import load_cluster
from placeto.cost import PlacementProblem, ProblemBatch
from placeto.graph import ComputationGraph
from placeto.simulator import simulate, simulate_batch
problem = PlacementProblem(ComputationGraph.from_ops("one", [{"name": "a"}]), load_cluster("2xk80"))
imported = time.perf_counter()
simulate(problem, np.array([0])).slack_us
single = time.perf_counter()
simulate_batch(ProblemBatch.of([problem]), np.array([0]), np.array([[0]]))
print(imported - begin, single - imported, time.perf_counter() - single)
"""


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


def best_of(function: Callable[[], object], repeats: int, rounds: int = 5) -> float:
    """Seconds per call: the fastest of `rounds` rounds of `repeats` calls."""
    best = float("inf")
    for _ in range(rounds):
        begin = time.perf_counter()
        for _ in range(repeats):
            function()
        best = min(best, (time.perf_counter() - begin) / repeats)
    return best


def bench(num_ops: int, cluster: str, threads: int) -> list[str]:
    """One row of the table."""
    problem = PlacementProblem(random_graph(num_ops), load_cluster(cluster))
    rng = np.random.default_rng(1)
    # Different placements in turn: with a single one, the branch predictor learns a small graph by heart.
    count = min(64, max(4, 200_000 // num_ops))
    placements = rng.integers(0, problem.num_devices, (count, num_ops))
    flat, record = problem.arrays, _kernel.new_record(problem.arrays, 0)
    op_slack, send_slack = np.empty(num_ops), np.empty(problem.graph.num_edges)
    repeats = max(1, 20_000 // num_ops)

    def kernel(with_slack: bool = False) -> None:
        for row in placements:
            makespan, num_sends = _kernel.run(flat, 0, row, record, np.inf)
            if with_slack:
                _kernel.slack(flat, 0, row, record, num_sends, makespan, op_slack, send_slack)

    run_s = best_of(kernel, 1) / count
    slack_s = best_of(lambda: kernel(True), 1) / count - run_s
    single_s = best_of(lambda: simulate(problem, placements[0]), repeats)
    batch, index = ProblemBatch.of([problem]), np.zeros(count, np.int64)
    per_second = []
    for thread_count in (1, threads):
        numba.set_num_threads(thread_count)
        seconds = best_of(lambda: simulate_batch(batch, index, placements), max(1, repeats // count), 3)
        per_second.append(f"{count / seconds:,.0f}")
    plain = "-"
    if num_ops <= PLAIN_LIMIT:
        plain = f"{best_of(lambda: reference(problem, placements[0]), 1, 3) / single_s:,.0f}x"
    return [
        f"{num_ops:,}",
        cluster,
        f"{run_s / num_ops * 1e9:.0f}",
        f"{slack_s / num_ops * 1e9:.0f}",
        f"{single_s * 1e6:,.0f}",
        *per_second,
        plain,
    ]


def starts() -> None:
    """Seconds from a fresh interpreter to the first results, with an empty and with a filled compilation cache."""
    with tempfile.TemporaryDirectory() as folder:
        for label in ("cold", "cached"):
            environment = {**os.environ, "NUMBA_CACHE_DIR": folder}
            output = subprocess.run([sys.executable, "-c", START], env=environment, capture_output=True, check=True)
            imports, single, batch = map(float, output.stdout.split())
            print(f"{label} start: import {imports:.1f} s, simulate {single:.1f} s, simulate_batch {batch:.1f} s")


def main() -> None:
    """Print the start times and the table."""
    starts()
    threads = numba.get_num_threads()
    table = Table("ops", "cluster", "ns/op", "slack ns/op", "simulate us", "batch/s, 1 thread", f"{threads} threads")
    table.add_column("plain")
    for column in table.columns:
        column.justify = "right"
    for num_ops in SIZES:
        for cluster in CLUSTERS:
            table.add_row(*bench(num_ops, cluster, threads))
    Console(width=110).print(table)


if __name__ == "__main__":
    main()
