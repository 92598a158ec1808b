"""The best placement met so far, by placements and core seconds: one small file for each cell, made once.

A cell is a graph, a cluster, a placer and a seed. Cells run in several processes of one thread each. What is in the
folder is not run again. Core seconds are CPU time of the process, after a warm-up on a tiny graph, so that neither
compiling nor other work on the machine counts.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from experiments import harness
from experiments.command import commit
from experiments.harness import measure_cells
from placeto.problem.cluster import load_cluster
from placeto.problem.graph import ComputationGraph
from placeto.problem.problem import PlacementProblem
from placeto.simulator.observer import Observer, observing
from placeto.simulator.threads import set_threads

WARM_UP = 300  # placements on the tiny graph
TIE = 1e-9  # relative


class Clock:
    """Core seconds at moments of which the seconds since its start are known; asked for by `core`."""

    def __init__(self) -> None:
        self._wall, self._core = [time.perf_counter()], [time.process_time()]

    def tick(self, *_: object) -> None:
        """Take the time: the more often, the more exact."""
        self._wall.append(time.perf_counter())
        self._core.append(time.process_time())

    def core(self, seconds: float) -> float:
        """Core seconds since the start, so many seconds after it."""
        return float(np.interp(self._wall[0] + seconds, self._wall, self._core)) - self._core[0]


class Met(NamedTuple):
    """What a run met."""

    makespan_us: float  # of its best placement
    fits: bool  # whether that is within memory
    simulations: int
    history: Sequence[tuple[int, float, float]]  # (simulations, seconds, makespan_us), whenever it found a better one


def nothing(problem: PlacementProblem) -> None:
    """The settings of a placer that has none."""


@dataclass(frozen=True)
class Placer:
    """A line of the tables: how its cells run.

    `run` takes a problem, at most so many placements, a seed and the clock to tick. `settings` of a problem say what
    defines the answers beside the code: a cell of other settings is run again.
    """

    run: Callable[[PlacementProblem, int, int, Clock], Met]
    settings: Callable[[PlacementProblem], object] = nothing
    seeded: bool = True  # whether another seed gives another answer


@dataclass(frozen=True)
class Cell(harness.Cell):
    """One run."""

    budget: int  # placements

    def path(self, folder: Path, placer: Placer) -> Path:
        """Its file, in whose name a digest of problem and settings stands."""
        text = f"{self.problem.hash} {json.dumps(placer.settings(self.problem), sort_keys=True)}"
        name = f"{self.graph.replace(':', '-')}_{self.cluster}_{self.placer}_{self.seed}_{self.budget}"
        return folder / f"{name}_{sha256(text.encode()).hexdigest()[:8]}.json"


@dataclass(frozen=True)
class Trajectory:
    """The best so far of one cell; what doesn't fit into memory is no placement."""

    cell: Cell
    points: tuple[tuple[int, float, float], ...]  # (placements, core seconds, makespan_us), the makespan falling
    placements: int
    core_seconds: float
    commit: str

    @property
    def best_us(self) -> float:
        """The least makespan; inf where nothing was met within the budget."""
        return self.points[-1][2] if self.points else math.inf

    def reach(self, target_us: float) -> tuple[float, float]:
        """Placements and core seconds until the makespan is at a target or below; inf if it never is."""
        for placements, core, us in self.points:
            if us <= target_us * (1.0 + TIE):
                return placements, core
        return math.inf, math.inf


def trajectory(cell: Cell, placer: Placer) -> Trajectory:
    """Run a cell in this process, warmed up first."""
    if (cell.placer, cell.cluster) not in _WARM:
        _warm_up(placer, cell.cluster)
        _WARM.add((cell.placer, cell.cluster))
    shared = cell.problem
    problem = PlacementProblem(shared.graph, shared.cluster, shared.costs)  # grouping it is part of the seconds
    clock = Clock()
    began = time.process_time()
    with observing(Observer(report=clock.tick)):
        met = placer.run(problem, cell.budget, cell.seed, clock)
    clock.tick()
    spent = time.process_time() - began
    points = [
        (int(count), clock.core(seconds), float(us))
        for count, seconds, us in met.history
        if met.fits and met.makespan_us * (1.0 - TIE) <= us < math.inf and count <= cell.budget
    ]
    return Trajectory(cell, tuple(points), met.simulations, spent, commit())


_WARM: set[tuple[str, str]] = set()
"""Names of placers, and the clusters for which they were warmed up in this process."""


def _warm_up(placer: Placer, cluster: str) -> None:
    """Run a placer on a tiny graph."""
    of = {"module": "m", "flops": 1e6, "outputs": [4]}
    ops = [{"name": "m/a", **of}, *({"name": f"m/{n}", "inputs": [["m/a", 0]], **of} for n in "bcdefgh")]
    tiny = PlacementProblem(ComputationGraph.from_ops("tiny", ops), load_cluster(cluster))
    placer.run(tiny, WARM_UP, 0, Clock())


def run_cells(
    cells: Sequence[Cell], placers: Mapping[str, Placer], folder: Path, workers: int | None
) -> dict[Cell, Trajectory]:
    """Run the cells that the folder lacks, and read all of them.

    Args:
        cells: in which order.
        placers: by name.
        folder: of their files.
        workers: processes; all cores if None, 1 = this process.
    """
    set_threads(1, 1)
    found = measure_cells(
        cells,
        partial(_row, placers=placers),
        "cells",
        workers=workers,
        file=lambda cell: cell.path(folder, placers[cell.placer]),
    )
    return {
        cell: Trajectory(**{**row, "cell": cell, "points": tuple(map(tuple, row["points"]))})
        for cell, row in found.items()
    }


def _row(cell: Cell, placers: Mapping[str, Placer]) -> dict[str, Any]:
    return asdict(trajectory(cell, placers[cell.placer]))
