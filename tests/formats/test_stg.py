"""Hand-written task graphs of the Standard Task Graph Set's format with known schedules, and bad ones."""

import gzip
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from experiments.peers import equal_devices
from placeto.formats.importers import IMPORTERS, find_importer
from placeto.formats.stg import load
from placeto.problem.problem import PlacementProblem
from placeto.simulator.schedule import simulate
from tests.formats.refusals import assert_refused
from tests.growth import assert_in_proportion

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


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["# nothing"], "not a task graph: it has no line"),
        (["many"], "line 1: must be a whole number below 10\\^9, not 'many'"),
        (["-1"], "line 1: must be a whole number"),
        (["9" * 5000], "line 1: must be a whole number"),
        (["2", "1 5 0"], "line 1: says 2 tasks, but 1 follow"),
        ([*PLAIN[:7], "6 1 0"], "line 1: says 4 tasks, but 7 follow"),
        (["2", "1 5 0", "1 5 0"], "line 3: task 1 is there twice"),
        (["2", "1 5 0", "2 5"], "line 3: must be a task's number, its time and how many tasks it needs"),
        (["2", "1 5 0", "2 5 2 1"], "line 3: task 2 must name the 2 tasks that it needs"),
        (["2", "1 5 0", "2 5 2", "1 3"], "line 3: task 2 must name the 2 tasks that it needs"),
        (["2", "1 5 0", "2 5 1 7"], "line 3: task 2 needs task 7, which is not there"),
        (["2", "1 5 0", "2 fast 0"], "line 3: must be a time, not 'fast'"),
        (
            ["2", "1 5 0", "2 nan 0"],
            r"ops\['task2'\]\.time_us\['\*'\] must be a finite number",
        ),
        (
            ["2", "1 5 0", "2 5 1 1 -3"],
            r"ops\['task1'\]\.outputs\[0\] must be >= 0",
        ),
        (["2", "1 5 1 2", "2 5 1 1"], "cycle"),
        (["0"], "the graph is empty"),
    ],
)
def test_bad_files(tmp_path: Path, lines: list[str], message: str) -> None:
    path = written(tmp_path, lines)
    assert_refused(load, path, message)


def test_recognised_by_name(tmp_path: Path) -> None:
    path, packed = written(tmp_path, PLAIN), tmp_path / "rand0000.stg.gz"
    packed.write_bytes(gzip.compress(("\ufeff" + path.read_text()).encode()))
    assert find_importer(path) is find_importer(packed) is IMPORTERS["stg"]
    assert load(packed).hash == load(path).hash
    assert load(packed).name == "rand0000"


def test_time_grows_as_the_number_of_tasks(tmp_path: Path) -> None:
    def read(tasks: int) -> Callable[[], object]:
        lines = [line for task in range(1, tasks) for line in (f"{task + 1} 1 1", f"{task} 3")]
        path = written(tmp_path, [str(tasks), "1 1 0", *lines])
        assert load(path).num_edges == tasks - 1
        return lambda: load(path)

    assert_in_proportion(read, 4_000)
