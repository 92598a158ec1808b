"""Cells -> rows: what the experiments measure, in how many processes, and what of it is kept.

A cell is one thing to measure: a graph on a cluster with a placer and a seed, or whatever an experiment says. What was
measured of it is its row. `experiments.tables` makes tables of rows.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from placeto.evaluation.comparison import in_processes, start_process
from placeto.placers import resolve_graph
from placeto.plumbing.cores import cores
from placeto.plumbing.progress import ProgressBar
from placeto.problem.cluster import load_cluster
from placeto.problem.costs import load_costs
from placeto.problem.json_files import write_json
from placeto.problem.problem import PlacementProblem

DATA = Path(__file__).parents[2] / "shared" / "data"
"""What others published, beside the source tree."""
Item = TypeVar("Item")
Result = TypeVar("Result")


@cache
def problem_of(graph: str, cluster: str, costs: str = "efficiency") -> PlacementProblem:
    """A graph, as the command line names it, on a cluster; kept, with all that is cached for it."""
    return PlacementProblem(resolve_graph(graph)[1], load_cluster(cluster), load_costs(costs))


@dataclass(frozen=True)
class Cell:
    """A graph on a cluster, and the placer and the seed that place it."""

    graph: str  # file or family:split:index
    cluster: str
    placer: str
    seed: int

    def __str__(self) -> str:
        return f"{self.graph} on {self.cluster}, {self.placer}, seed {self.seed}"

    @property
    def problem(self) -> PlacementProblem:
        """What is placed."""
        return problem_of(self.graph, self.cluster)


def measure_cells(
    cells: Iterable[Item],
    measure: Callable[[Item], Result],
    doing: str = "placing",
    *,
    workers: int | None = 1,
    file: Callable[[Item], Path] | None = None,
) -> dict[Item, Result]:
    """What is measured of each cell, in their order.

    Args:
        cells: each is shown as its text while it is measured.
        measure: of one cell.
        doing: what the progress bar says.
        workers: processes of one thread each; 1 is this process, None is one for each core.
        file: where the row of a cell is kept as JSON. What is there is not measured again.
    """
    order = list(dict.fromkeys(cells))  # each once
    kept = {cell: file(cell) for cell in order} if file is not None else {}
    found = {cell: json.loads(path.read_text()) for cell, path in kept.items() if path.is_file()}
    missing = [cell for cell in order if cell not in found]
    with ProgressBar(doing, total=len(order)) as bar:
        bar.update(len(found))
        for cell, row in _rows(missing, measure, min(workers or len(cores()), len(missing))):
            if file is not None:
                kept[cell].parent.mkdir(parents=True, exist_ok=True)
                write_json(row, kept[cell])
            found[cell] = row
            bar.advance(note=str(cell))
    return {cell: found[cell] for cell in order}


def _rows(cells: Sequence[Item], measure: Callable[[Item], Result], workers: int) -> Iterator[tuple[Item, Result]]:
    if workers > 1:
        return in_processes(measure, cells, workers, start_process)
    return ((cell, measure(cell)) for cell in cells)


def published(data: Path, table: str) -> list[Any]:
    """Rows of a table in ``parallel/golden.json`` of a folder: numbers that others published."""
    rows: list[Any] = json.loads((data / "parallel" / "golden.json").read_text())[table]["rows"]
    return rows
