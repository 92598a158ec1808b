"""The best placement met so far, by placements and core seconds: one small file for each cell, made once.

A cell is a graph, a cluster, a placer and a seed. Cells run in several processes of one thread each. What is in the
folder is not run again; a cell that fails is told, and the others go on. Core seconds are CPU time of the process,
after a warm-up on a tiny graph, so that neither compiling nor other work on the machine counts.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

import numpy as np

from experiments import harness
from experiments.command import commit
from experiments.harness import measure_cells
from placeto.problem.cluster import load_cluster
from placeto.problem.files import write_text
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
    _warm_up(cell.placer, cell.cluster, placer)
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


_warm: set[tuple[str, str]] = set()


def _warm_up(name: str, cluster: str, placer: Placer) -> None:
    """Run a placer on a tiny graph, once in a process."""
    if (name, cluster) in _warm:
        return
    of = {"module": "m", "flops": 1e6, "outputs": [4]}
    ops = [{"name": "m/a", **of}, *({"name": f"m/{n}", "inputs": [["m/a", 0]], **of} for n in "bcdefgh")]
    tiny = PlacementProblem(ComputationGraph.from_ops("tiny", ops), load_cluster(cluster))
    placer.run(tiny, WARM_UP, 0, Clock())
    _warm.add((name, cluster))


def load(path: Path) -> Trajectory:
    """Read the file of a cell."""
    saved = json.loads(path.read_text())
    points = tuple((count, core, us) for count, core, us in saved["points"])
    return Trajectory(**{**saved, "cell": Cell(**saved["cell"]), "points": points})


def stored(cells: Sequence[Cell], placers: Mapping[str, Placer], folder: Path) -> dict[Cell, Trajectory]:
    """Those of the cells that are in the folder."""
    paths = {cell: cell.path(folder, placers[cell.placer]) for cell in cells}
    return {cell: load(path) for cell, path in paths.items() if path.is_file()}


def run_cells(
    cells: Sequence[Cell],
    placers: Mapping[str, Placer],
    folder: Path,
    workers: int | None,
    minutes: float | None,
) -> list[str]:
    """Run the cells that the folder lacks, in their order; returns a line for each that failed.

    Args:
        cells: in which order.
        placers: by name.
        folder: of their files.
        workers: processes; all cores if None, 1 = this process.
        minutes: after which no further cell begins.
    """
    folder.mkdir(parents=True, exist_ok=True)
    known = stored(cells, placers, folder)
    until = math.inf if minutes is None else time.time() + 60.0 * minutes
    jobs = [_Job(cell, placers[cell.placer], folder, until) for cell in cells if cell not in known]
    set_threads(1, 1)
    failed = measure_cells(jobs, _work, "cells", workers=workers)
    return [f"{job.cell}: {problem}" for job, problem in failed.items() if problem is not None]


class _Job(NamedTuple):
    cell: Cell
    placer: Placer
    folder: Path
    until: float  # time.time()

    def __str__(self) -> str:
        return str(self.cell)


def _work(job: _Job) -> str | None:
    """Run a cell and write its file, if there is time; returns what went wrong."""
    if time.time() >= job.until:
        return None
    try:
        found = trajectory(job.cell, job.placer)
    except Exception as problem:  # the other cells go on; the command tells at its end
        return f"{type(problem).__name__}: {problem}"
    write_text(json.dumps(asdict(found)) + "\n", job.cell.path(job.folder, job.placer))
    return None
