"""Two hand-written profiles with every oddity of the real ones, and the real ones where they lie beside the project."""

import gzip
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from placeto.formats.importers import IMPORTERS, find_importer
from placeto.formats.pipedream import load
from placeto.problem.cluster import load_cluster
from placeto.problem.graph import ComputationGraph, GraphError
from placeto.problem.grouping import group_ops
from placeto.problem.problem import PlacementProblem
from placeto.simulator.schedule import simulate
from tests.formats.refusals import assert_refused
from tests.growth import assert_in_proportion, seconds
from tests.toys import toy_cluster

DATA = Path(__file__).parents[3] / "shared" / "data" / "pipedream"


def layer(name: str, description: str, forward: float, backward: float, activation: object, parameters: float) -> str:
    return (
        f"{name} -- {description} -- forward_compute_time={forward:.3f}, backward_compute_time={backward:.3f}, "
        f"activation_size={activation}, parameter_size={parameters:.3f}"
    )


SAMPLE = [
    layer("node10", "ReLU(inplace)", 0.25, 0.125, "40.0", 0),
    layer("node1", "Input", 21.7, 3.0, "1000.000", 0),
    layer("node2", "LSTM(2048, 1024)", 2, 4, "[600.0; 12.0]", 500),
    layer("node3", "__getitem__(0)", 0, 0, "600.0", 0),
    layer("node4", "__getitem__(1)", 0, 0, "12.0", 0),
    layer("node9", "Linear(in_features=4, bias=True)", 1, 2, "40.0", 80),
    "\tnode1 -- node2",
    "\tnode2 -- node3",
    "\tnode2 -- node4",
    "\tnode3 -- node9",
    "\tnode4 -- node9",
    "\tnode2 -- node10",
    "\tnode9 -- node10",
]


@pytest.fixture
def sample(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.graph.txt"
    path.write_text("\n".join(SAMPLE) + "\n")
    return path


def ops_of(graph: ComputationGraph) -> dict[str, dict]:
    return {record["name"]: record for record in graph.to_ops()}


def test_forward_and_backward_ops(sample: Path) -> None:
    graph = load(sample)
    assert (graph.name, graph.mode) == ("tiny", "training")
    forward = ["node1", "node2", "node3", "node4", "node9", "node10"]  # by number, not as in the file
    assert list(graph.op_names) == forward + [f"{name}/grad" for name in reversed(forward[1:])]
    ops = ops_of(graph)
    assert ops["node2"]["time_us"] == {"*": 2000.0}
    assert ops["node2/grad"]["time_us"] == {"*": 4000.0}
    assert ops["node1"]["time_us"] == {"*": 0.0}, "loading data is no work of the step"
    assert ops["node9"]["type"] == "Linear"
    assert ops["node9/grad"]["type"] == "Linear.backward"
    assert {name: op["param_bytes"] for name, op in ops.items() if op.get("param_bytes")} == {"node2": 500, "node9": 80}


def test_backward_edges_mirror_forward_ones(sample: Path) -> None:
    ops = ops_of(load(sample))
    assert ops["node2"]["outputs"] == [600, 12]
    assert ops["node9"]["inputs"] == [["node3", 0], ["node4", 0]]
    # One gradient per input, of that input's size.
    assert ops["node9/grad"]["outputs"] == [600, 12]
    assert ops["node3/grad"]["inputs"] == [["node9/grad", 0], ["node3", 0]]
    assert ops["node4/grad"]["inputs"] == [["node9/grad", 1], ["node4", 0]]
    # The ends of the graph: the loss reads the last activation, and inputs need no gradient.
    assert ops["node10/grad"]["inputs"] == [["node10", 0]]
    assert ops["node2/grad"].get("outputs", []) == []


def test_lists_of_activations(sample: Path) -> None:
    ops = ops_of(load(sample))
    assert ops["node3"]["inputs"] == [["node2", 0]]
    assert ops["node4"]["inputs"] == [["node2", 1]]
    assert ops["node10"]["inputs"] == [["node2", 0], ["node2", 1], ["node9", 0]], "other layers read all of the list"
    assert ops["node10/grad"]["outputs"] == [600, 12, 40]
    gradients = [["node3/grad", 0], ["node4/grad", 0], ["node10/grad", 0], ["node10/grad", 1]]
    assert ops["node2/grad"]["inputs"] == [*gradients, ["node2", 0], ["node2", 1]]


def test_colocation(sample: Path) -> None:
    graph = load(sample)
    colour = dict(zip(graph.op_names, graph.colocation.tolist(), strict=True))
    for name in ("node2", "node9", "node10"):
        assert colour[name] == colour[f"{name}/grad"] >= 0
    assert len({colour["node2"], colour["node9"], colour["node10"]}) == 3
    assert colour["node3"] == colour["node4"] == colour["node3/grad"] == colour["node2"], "no time, no parameters"
    assert colour["node1"] == -1
    assert group_ops(PlacementProblem(graph, toy_cluster(2))).num_groups == 3, "the input joins its first user"


def test_makespan_on_one_device_is_the_sum_of_times(sample: Path) -> None:
    problem = PlacementProblem(load(sample), toy_cluster(1))
    schedule = simulate(problem, np.zeros(problem.num_ops, np.int64))
    assert schedule.makespan_us == pytest.approx(1000 * (2 + 4 + 1 + 2 + 0.25 + 0.125))


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([], "no layer"),
        (["node1 -- node2"], "line 1: edge to or from 'node1'"),
        ([SAMPLE[0], "what is this"], "line 2: neither a layer"),
        ([SAMPLE[0], SAMPLE[0]], "line 2: layer 'node10' is there twice"),
        (
            [SAMPLE[0].replace("=0.125", "=fast")],
            "line 1: layer 'node10': backward_compute_time must be a finite number >= 0",
        ),
        (
            [SAMPLE[0].replace("=40.0", "=[40.0; -1]")],
            "line 1: layer 'node10': activation_size must be a finite number >= 0",
        ),
        ([SAMPLE[0].replace("activation_size", "size")], "line 1: layer 'node10' has no activation_size"),
        ([*SAMPLE, "\tnode10 -- node2"], "cycle"),
        ([*SAMPLE, "\tnode3 -- node3"], "node3"),
        (
            [layer("a", "Linear", 1, 2, f"[{'; '.join(['1.0'] * 101)}]", 0)],
            "at most 100 sizes, not 101",
        ),
        (
            [layer("a", "Linear", 1, 2, "1e300", 0)],
            r"ops\['a'\]\.outputs\[0\] must be <= 9223372036854775807",
        ),
        (
            [layer("a", "Linear", 1e308, 2, "1", 0)],
            r"ops\['a'\]\.time_us\['\*'\] must be a finite number",
        ),
        (["x" * 600_000 + " -- y"], "line 1: edge to or from 'xxx"),
    ],
)
def test_bad_files(tmp_path: Path, lines: list[str], message: str) -> None:
    path = tmp_path / "bad.graph.txt"
    path.write_text("\n".join(lines))
    assert_refused(load, path, message)


def test_not_a_text_file(tmp_path: Path) -> None:
    path = tmp_path / "bad.graph.txt"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(GraphError, match="not a text file"):
        load(path)


def test_recognised_by_name(sample: Path) -> None:
    assert find_importer(sample) is IMPORTERS["pipedream"]
    assert find_importer(sample.with_name("graph.txt")) is IMPORTERS["pipedream"], "as upstream calls them"
    assert find_importer(sample.with_name("tiny.txt")) is None


def test_copies_and_planned_graphs(sample: Path) -> None:
    """Upstream keeps a ``graph_copy.txt``; its optimizer adds a stage to each layer."""
    copy = sample.with_name("graph_copy.txt")
    copy.write_text("\n".join(line if line.startswith("\t") else f"{line} -- stage_id=1" for line in SAMPLE))
    assert find_importer(copy) is IMPORTERS["pipedream"]
    graph = load(copy)
    assert (graph.name, graph.to_ops()) == ("graph_copy", load(sample).to_ops())
    copy.write_text("a -- b\n")
    assert find_importer(copy) is None


@pytest.mark.skipif(not DATA.is_dir(), reason="the data is not here")
@pytest.mark.parametrize(
    ("name", "layers", "inputs"),
    [("gnmt", 48, 3), ("resnet50", 177, 1), ("inception_v3", 326, 1), ("nasnetamobile", 921, 1)],
)
def test_real_profiles(name: str, layers: int, inputs: int) -> None:
    graph = load(DATA / f"{name}.graph.txt")
    assert graph.num_ops == 2 * layers - inputs
    problem = PlacementProblem(graph, load_cluster("4xv100"))
    assert group_ops(problem).num_groups <= 200
    assert problem.lower_bound_us < problem.single_device_us < 1e6, "well under a second, without the loading of data"
    is_input = [kind.startswith("Input") for kind in graph.op_types]
    assert sum(is_input) == inputs
    assert not graph.time_us["*"][is_input].any()


@pytest.mark.parametrize("argument", ["²", "9" * 5000, "01", "-3", "2"])
def test_what_is_no_item_reads_all(tmp_path: Path, argument: str) -> None:
    path = tmp_path / "odd.graph.txt"
    path.write_text("\n".join(SAMPLE).replace("__getitem__(1)", f"__getitem__({argument})"))
    assert ops_of(load(path))["node4"]["inputs"] == [["node2", 0], ["node2", 1]]


def test_items_may_be_counted_from_the_end(tmp_path: Path) -> None:
    path = tmp_path / "end.graph.txt"
    path.write_text("\n".join(SAMPLE).replace("__getitem__(1)", "__getitem__(-1)"))
    assert ops_of(load(path))["node4"]["inputs"] == [["node2", 1]]


@pytest.mark.parametrize("comma", [", ", ","])
def test_sizes_of_a_list_may_have_commas_between(sample: Path, comma: str) -> None:
    graph = load(sample)
    sample.write_text("\n".join(SAMPLE).replace("; ", comma))
    assert load(sample).hash == graph.hash


def test_other_ways_to_store_text(sample: Path) -> None:
    """With the mark of some editors before it, and lines that end as on Windows; compressed."""
    graph, packed, text = load(sample), sample.with_name("tiny.graph.txt.gz"), "\ufeff" + "\r\n".join(SAMPLE)
    sample.write_bytes(text.encode())
    packed.write_bytes(gzip.compress(text.encode()))
    other = sample.with_name("other.txt.gz")
    other.write_bytes(packed.read_bytes())
    for path in (sample, packed, other):
        assert find_importer(path) is IMPORTERS["pipedream"]
        assert load(path).hash == graph.hash
    assert load(packed).name == "tiny"
    other.write_bytes(b"\x1f\x8b damaged")
    assert find_importer(other) is None


def test_long_numbers_in_names(tmp_path: Path) -> None:
    names = [f"{digits}{end}" for end in ("x", "") for digits in ("9" * 30_000, "1" * 30_000, "2" * 29_999)]
    path = tmp_path / "long.graph.txt"
    path.write_text("\n".join(layer(name, "ReLU", 1, 1, "4", 0) for name in names))
    spent = seconds(lambda: load(path))
    assert spent < 10.0, "40 s where every beginning of a name is tried, 0.1 s now"
    order = load(path).op_names[:6]
    assert order == (names[5], names[4], names[3], names[1], names[2], names[0]), "by their numbers, then as strings"


def test_long_chains_without_work(tmp_path: Path) -> None:
    """Each layer walked the chain anew."""
    path = tmp_path / "chain.graph.txt"

    def read(count: int) -> Callable[[], object]:
        layers = [layer(f"n{i}", "View", 0, 0, "4", 0) for i in range(count)]
        arcs = [f"\tn{i} -- n{i + 1}" for i in range(count - 1)]
        path.write_text("\n".join([*layers, *arcs, layer("home", "Linear", 1, 1, "4", 4), "\thome -- n0"]))
        return lambda: load(path)

    assert_in_proportion(read, 4000)
    assert (load(path).colocation == 0).all(), "all at home"
