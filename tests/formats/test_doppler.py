"""A hand-written graph of DOPPLER's format with a known schedule."""

from pathlib import Path

import numpy as np
import pytest

from experiments.peers import equal_devices
from placeto.formats.graphs_of_others.doppler import load
from placeto.problem.problem import PlacementProblem
from placeto.simulator.schedule import simulate

# Two inputs and four nodes; 0 feeds 1 and 2, both feed 3; the arc from 0 to 1 stands there twice.
SAMPLE = ["6", "0, 1, ", "0,0, 0, 1, 2,", "1, 2,1, 3, 3", "100,40", "7000000001,30,9", "50,1", "10,1000"]


@pytest.fixture
def sample(tmp_path: Path) -> Path:
    path = tmp_path / "tiny_6nodes.txt"
    path.write_text("\n".join(SAMPLE))
    return path


def test_an_op_for_each_node_that_is_no_input(sample: Path) -> None:
    graph = load(sample)
    assert (graph.name, graph.mode) == ("tiny_6nodes", "inference")
    assert graph.op_names == ("node0", "node1", "node2", "node3")
    assert graph.time_us["*"].tolist() == [100, 7000000001, 50, 10]
    assert graph.output_bytes.tolist() == [40, 30, 1, 1000]
    edges = list(zip(graph.edge_src.tolist(), graph.edge_dst.tolist(), strict=True))
    assert edges == [(0, 1), (0, 2), (1, 3), (2, 3)]


def test_nodes_may_say_what_they_compute(sample: Path) -> None:
    """As in the graphs that upstream gives to GDP."""
    words = ["100,40,einsummable", "7000000001,30, formation ", "50,1,", "10,1000,9"]
    plain = load(sample)
    sample.write_text("\n".join([*SAMPLE[:4], *words]))
    graph = load(sample)
    assert graph.op_types == ("einsummable", "formation", "op", "op")
    assert graph.time_us["*"].tolist() == plain.time_us["*"].tolist()


def test_transfers_take_their_producers_time_and_wait_for_nothing(sample: Path) -> None:
    problem = PlacementProblem(load(sample), equal_devices(3))
    schedule = simulate(problem, np.array([0, 1, 2, 0]))
    # node 0 sends to both others at once; node 3 waits for node 1
    assert schedule.start_us.tolist() == [0, 140, 140, 140 + 7000000001 + 30]
    assert schedule.makespan_us == 140 + 7000000001 + 30 + 10


def test_names_sort_by_number(tmp_path: Path) -> None:
    path = tmp_path / "11nodes.txt"
    path.write_text("\n".join(["12", "0,", "0,", "1,", *["1,1"] * 11]))
    assert load(path).name_rank.tolist() == list(range(11)), "ties go by number"
