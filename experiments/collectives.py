"""Do all-reduces take as long as measured ones, and how much does the share of the bandwidth decide?

python -m experiments.collectives [--data ../shared/data/outside/vtrain]

VIA-Research/vTrain (MICRO 2024, arXiv 2312.12391, MIT) measured NCCL's all-reduces of 1 to 1024 MiB, in steps of one
MiB, on 2, 4 and 8 A100 of a host. `collective_us` has them for the links of the preset `8xa100-40gb`. Three numbers of
it were chosen near the best for these tables: the fixed part, the time of a hop, and the share of the bandwidth. Those
of the last rows are chosen on two of the tables, for the third. Rings are also simulated, transfer by transfer, as
those of replicas are: over links as collectives reach them, and over all of the links.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
from scipy.optimize import minimize

from experiments.command import command
from experiments.tables import markdown
from placeto.problem.cluster import load_cluster
from placeto.problem.costs.collectives import HOP, SHARE, START_US, collective_us
from placeto.problem.graph import ComputationGraph
from placeto.problem.problem import PlacementProblem
from placeto.simulator.tool_steps.data_parallel import ring_us

RANKS = (2, 4, 8)
OCTAVES = (1, 4, 16, 64, 256, 1024)
"""MiB between the columns."""


@dataclass(frozen=True)
class Collectives:
    """Read, compute, compare."""

    data: Path = Path("../shared/data/outside/vtrain")
    """folder of the measured tables"""


def read_all_reduces(folder: Path, ranks: int) -> tuple[np.ndarray, np.ndarray]:
    """(K,) bytes, and (K,) microseconds out of place."""
    table = np.genfromtxt(folder / f"a100_AR_GPU{ranks}_1M_1024M_LUT", delimiter=",", skip_header=1)
    return table[:, 0], table[:, 3] / 1e3


def main(config: Collectives) -> None:
    """The tables."""
    cluster = load_cluster("8xa100-40gb")
    problem = PlacementProblem(ComputationGraph.from_ops("nothing", [{"name": "nothing"}]), cluster)
    bandwidth, latency_us = float(cluster.bandwidth[0, 1]), float(cluster.latency_us[0, 1])
    measured = {ranks: read_all_reduces(config.data, ranks) for ranks in RANKS}

    def ours(sizes: np.ndarray, ranks: int, share: float = 1.0) -> np.ndarray:
        return np.array([collective_us("all_reduce", int(s), ranks, share * bandwidth, latency_us) for s in sizes])

    def ring(sizes: np.ndarray, ranks: int, values: np.ndarray) -> np.ndarray:
        start_us, hop, share = values
        return start_us + 2 * (ranks - 1) * (hop * latency_us + sizes / ranks / (share * bandwidth))

    def chosen_without(left_out: int) -> np.ndarray:
        others = {ranks: pair for ranks, pair in measured.items() if ranks != left_out}

        def loss(values: np.ndarray) -> float:
            errors = {r: np.abs(np.log(np.maximum(ring(s, r, values), 1e-9) / us)) for r, (s, us) in others.items()}
            return sum(float(np.average(error, weights=1 / others[r][0])) for r, error in errors.items())

        return np.array(minimize(loss, [START_US, HOP, SHARE], method="Nelder-Mead").x)

    models: dict[str, Callable[[np.ndarray, int], np.ndarray]] = {
        f"one share, {SHARE:g}": ours,
        "without it: all of the bandwidth": lambda sizes, ranks: ours(sizes, ranks, 1 / SHARE),
        "simulated ring of replicas": lambda sizes, ranks: np.array(
            [ring_us(problem, range(ranks), int(size)) for size in sizes]
        ),
        "transfers over all of a link": lambda sizes, ranks: ring(sizes, ranks, np.array([0.0, 1.0, 1.0])),
        "numbers chosen on the other two": lambda sizes, ranks: ring(sizes, ranks, chosen_without(ranks)),
    }
    spans = [f"{low} to {high} MiB" for low, high in pairwise(OCTAVES)]
    rows = [["", "GPUs", "median error", "largest", *spans]]
    errors: dict[str, list[np.ndarray]] = {name: [] for name in models}
    for name, model in models.items():
        for ranks, (sizes, us) in measured.items():
            error = 100 * (model(sizes, ranks) / us - 1)
            errors[name].append(np.abs(error))
            octave = np.digitize(sizes / 2**20, OCTAVES[1:-1])
            cells = [f"{np.median(error[octave == number]):+.0f} %" for number in range(len(spans))]
            sizes_of = np.abs(error)
            rows.append([name, f"{ranks}", f"{np.median(sizes_of):.1f} %", f"{sizes_of.max():.0f} %", *cells])
    print(f"{markdown(rows)}\n")
    print("Columns of sizes have the median error with its sign. Medians over all three tables: ", end="")
    print(", ".join(f"{name} {np.median(np.concatenate(each)):.1f} %" for name, each in errors.items()) + ".")


if __name__ == "__main__":
    command(main, Collectives, "collectives", __doc__, "Times are computed, and compared with measured ones.")
