"""A hand-written graph of DOPPLER's format with a known schedule, bad ones, and the real ones where they lie near."""

import gzip
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from experiments.peers import equal_devices
from placeto.formats.doppler import load
from placeto.formats.importers import IMPORTERS, find_importer
from placeto.problem.graph import GraphError
from placeto.problem.problem import PlacementProblem
from placeto.simulator.schedule import simulate
from tests.formats.refusals import assert_refused
from tests.growth import assert_in_proportion

DATA = Path(__file__).parents[3] / "shared" / "data" / "doppler"
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


@pytest.mark.parametrize(
    ("line", "text", "message"),
    [
        (0, "7", "line 1: must be how many nodes there are, not '7': 2 inputs and 4 lines of nodes follow"),
        (0, "six", "line 1: must be whole numbers with commas between, not 'six'"),
        (1, "0, 1, 2", "line 1: must be how many nodes there are, not '6': 3 inputs"),
        (2, "0, 0, x, 1, 2", "line 3: must be whole numbers"),
        (2, "0, 0, 0", "line 4: 5 ends of arcs, but line 3 has 3 beginnings"),
        (2, "0, 0, 0, 1, -2", "line 3: an arc's end must be from 0 to 3, not -2"),
        (3, "1, 2, 1, 3, 4", "line 4: an arc's end must be from 0 to 3, not 4"),
        (3, "1, 2, 1, 3, 2", "node2"),
        (3, "1, 2, 1, 0, 3", "cycle"),
        (4, "100", "line 5: must be computing and communicating time with a comma between, not '100'"),
        (4, "100;40", "line 5: must be computing and communicating time"),
        (4, "fast,40", "line 5: must be computing and communicating time"),
        (
            4,
            "-1,40",
            r"ops\['node0'\]\.time_us\['\*'\] must be >= 0",
        ),
        (
            4,
            "nan,40",
            r"ops\['node0'\]\.time_us\['\*'\] must be a finite number",
        ),
        (
            4,
            "1,2.5",
            r"ops\['node0'\]\.outputs\[0\] must be an integer",
        ),
        (
            4,
            "1,1e300",
            r"ops\['node0'\]\.outputs\[0\] must be <= 9223372036854775807",
        ),
        (2, "9" * 5000, "line 3: must be whole numbers"),
    ],
)
def test_bad_files(sample: Path, line: int, text: str, message: str) -> None:
    sample.write_text("\n".join([*SAMPLE[:line], text, *SAMPLE[line + 1 :]]))
    assert_refused(load, sample, message)


def test_neither_text_nor_lines(sample: Path) -> None:
    sample.write_bytes(b"6\n0,\xff\n")
    with pytest.raises(GraphError, match="not a DOPPLER graph: not a text file"):
        load(sample)
    sample.write_text("6\n0, 1\n")
    with pytest.raises(GraphError, match="not a DOPPLER graph: it has 2 lines"):
        load(sample)


def test_recognised_by_name_or_beginning(sample: Path) -> None:
    assert find_importer(sample) is IMPORTERS["doppler"]
    other = sample.with_name("tiny.txt")
    assert find_importer(other) is None, "not there"
    other.write_text(sample.read_text())
    assert find_importer(other) is IMPORTERS["doppler"]
    packed = sample.with_name("tiny.txt.gz")
    packed.write_bytes(gzip.compress(("\ufeff" + sample.read_text()).encode()))
    assert find_importer(packed) is IMPORTERS["doppler"]
    assert load(packed).hash == load(sample).hash
    other.write_text("6 apples\n0, 1\n")
    assert find_importer(other) is None


def test_time_grows_as_the_number_of_arcs(tmp_path: Path) -> None:
    def read(count: int) -> Callable[[], object]:
        arcs = range(count - 1)
        lines = [str(count + 1), "0,", ",".join(map(str, arcs)), ",".join(str(arc + 1) for arc in arcs)]
        path = tmp_path / "long_nodes.txt"
        path.write_text("\n".join([*lines, *["1,1"] * count]))
        assert load(path).num_edges == count - 1
        return lambda: load(path)

    assert_in_proportion(read, 4_000)


@pytest.mark.skipif(not DATA.is_dir(), reason="the data is not here")
@pytest.mark.parametrize(
    ("name", "nodes", "arcs", "work"),
    [
        ("chain_mm_112nodes", 76, 80, 4800.28),
        ("ffnn_192nodes", 180, 208, 226.7832),
        ("transformer_block_215nodes", 182, 234, 388.6778),
        ("full_transformer_layer_261nodes", 229, 284, 388.9770),
    ],
)
def test_published_graphs(name: str, nodes: int, arcs: int, work: float) -> None:
    problem = PlacementProblem(load(DATA / f"{name}.txt"), equal_devices(4))
    assert (problem.num_ops, problem.graph.num_edges) == (nodes, arcs)
    assert problem.single_device_us / 1e10 == pytest.approx(work, abs=1e-3)
