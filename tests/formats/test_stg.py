"""Hand-written task graphs of the Standard Task Graph Set's format with known schedules."""

from pathlib import Path

import numpy as np
import pytest

from experiments.peers import equal_devices
from placeto.formats.graphs_of_others.stg import load
from placeto.problem.problem import PlacementProblem
from placeto.simulator.schedule import simulate

PLAIN = [
    "          4",
    "          0          0          0 ",
    "          1         20          1          0 ",
    "          2         15          1          0 ",
    "          3         10          2          1          2 ",
    "          4          7          1          2",
    "          5          0          2          3          4",
    "#",
    "#   Processors: 2, tasks: 4",
]
COSTLY = ["3 2", "1 20 0", "2 15 1", "  1 6", "3 10 2", "  1 5 # beside", "  2 7"]


def written(folder: Path, lines: list[str]) -> Path:
    path = folder / "rand0000.stg"
    path.write_text("\n".join(lines) + "\n")
    return path


def edges(path: Path) -> list[tuple[str, int, str]]:
    """(from, bytes, to) of all edges."""
    return [
        (src, record["bytes"], dst)
        for src, dst, record in load(path).to_networkx().edges(data=True)
    ]  # fmt: skip


def test_tasks_with_dummies(tmp_path: Path) -> None:
    graph = load(written(tmp_path, PLAIN))
    assert (graph.name, graph.mode) == ("rand0000", "inference")
    assert graph.op_names == ("task0", "task1", "task2", "task3", "task4", "task5")
    assert graph.time_us["*"].tolist() == [0, 20, 15, 10, 7, 0]
    problem = PlacementProblem(graph, equal_devices(2))
    schedule = simulate(problem, np.array([0, 0, 1, 0, 1, 0]))
    assert schedule.start_us.tolist() == [0, 0, 0, 20, 15, 30], "nothing takes time between devices"
    assert schedule.makespan_us == problem.lower_bound_us == 30


@pytest.mark.parametrize("lines", [COSTLY, ["3", "1 20 0", "2 15 1 1 6", "3 10 2 1 5 2 7"]], ids=["below", "beside"])
def test_communication_by_edge(tmp_path: Path, lines: list[str]) -> None:
    path = written(tmp_path, lines)
    assert sorted(edges(path)) == [("task1", 5, "task3"), ("task1", 6, "task2"), ("task2", 7, "task3")]
    problem = PlacementProblem(load(path), equal_devices(2))
    assert simulate(problem, np.array([0, 1, 0])).makespan_us == 20 + 6 + 15 + 7 + 10
