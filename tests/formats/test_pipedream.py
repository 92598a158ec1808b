"""A hand-written profile with every oddity of the real ones."""

from pathlib import Path

import numpy as np
import pytest

from placeto.formats.graphs_of_others.pipedream import load
from placeto.problem.graph import ComputationGraph
from placeto.problem.grouping import group_ops
from placeto.problem.problem import PlacementProblem
from placeto.simulator.schedule import simulate
from tests.growth import seconds
from tests.toys import toy_cluster


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


def test_upstreams_optimizer_adds_a_stage_to_each_layer(sample: Path) -> None:
    plain = load(sample)
    sample.write_text("\n".join(line if line.startswith("\t") else f"{line} -- stage_id=1" for line in SAMPLE))
    assert load(sample).hash == plain.hash


@pytest.mark.parametrize(
    ("argument", "outputs"), [*((odd, [0, 1]) for odd in ("²", "9" * 5000, "01", "-3", "2")), ("-1", [1]), ("-2", [0])]
)
def test_items_may_be_counted_from_the_end_and_what_is_none_reads_all(
    sample: Path, argument: str, outputs: list[int]
) -> None:
    sample.write_text("\n".join(SAMPLE).replace("__getitem__(1)", f"__getitem__({argument})"))
    assert ops_of(load(sample))["node4"]["inputs"] == [["node2", output] for output in outputs]


@pytest.mark.parametrize("comma", [", ", ","])
def test_sizes_of_a_list_may_have_commas_between(sample: Path, comma: str) -> None:
    graph = load(sample)
    sample.write_text("\n".join(SAMPLE).replace("; ", comma))
    assert load(sample).hash == graph.hash


def test_long_numbers_in_names(tmp_path: Path) -> None:
    names = [f"{digits}{end}" for end in ("x", "") for digits in ("9" * 30_000, "1" * 30_000, "2" * 29_999)]
    path = tmp_path / "long.graph.txt"
    path.write_text("\n".join(layer(name, "ReLU", 1, 1, "4", 0) for name in names))
    spent = seconds(lambda: load(path))
    assert spent < 10.0, "40 s where every beginning of a name is tried, 0.1 s now"
    order = load(path).op_names[:6]
    assert order == (names[5], names[4], names[3], names[1], names[2], names[0]), "by their numbers, then as strings"
