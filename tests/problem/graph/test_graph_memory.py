"""Optional memory fields of graphs: which outputs are resident, which parameters are trained."""

from typing import Any

import numpy as np
import pytest

from placeto.errors import GraphError
from placeto.problem.cluster import load_cluster
from placeto.problem.graph import ComputationGraph
from placeto.problem.graph.graph_memory import with_optimizer
from placeto.problem.problem import PlacementProblem
from placeto.simulator.schedule import simulate

OPS: list[dict[str, Any]] = [
    {"name": "w", "type": "parameter", "param_bytes": 100, "outputs": [100]},
    {"name": "norm", "type": "norm", "param_bytes": 8, "outputs": [40, 2], "inputs": [["w", 0]]},
    {"name": "grad", "type": "mm", "outputs": [7, 100], "inputs": [["norm", 0]]},
]


def graph(mode: str = "training", **changes: dict[str, Any]) -> ComputationGraph:
    return ComputationGraph.from_ops("g", [op | changes.get(op["name"], {}) for op in OPS], mode)


def test_without_the_fields_graphs_are_what_they_were() -> None:
    plain = graph()
    assert plain.trained_bytes.tolist() == plain.param_bytes.tolist() == [100, 8, 0]
    assert plain.resident_outputs.tolist() == [True, False, False, False, False]
    assert plain.state_bytes.tolist() == [300, 24, 0]
    assert not any({"trained_bytes", "resident_outputs", "state_bytes"} & set(op) for op in plain.to_ops())
    assert (
        plain.hash == "451c736773e3ef9e0c25d0d1a1d009d90ecd05b85e1d14daa32e7b2e47583457"
    )  # as before there were such fields
    assert graph(w={"trained_bytes": 100, "state_bytes": 300}, norm={"resident_outputs": []}).hash == plain.hash
    assert graph("inference").trained_bytes.tolist() == [0, 0, 0]
    assert graph(w={"type": "weight"}).resident_outputs.tolist() == [False] * 5


def test_fields_are_part_of_the_hash() -> None:
    changes: dict[str, Any] = {"norm": {"trained_bytes": 0}, "grad": {"resident_outputs": [1]}}
    changed = graph(**changes)
    assert changed.trained_bytes.tolist() == [100, 0, 0]
    assert changed.resident_outputs.tolist() == [True, False, False, False, True]
    hashes = {graph().hash, changed.hash, *(graph(**{name: fields}).hash for name, fields in changes.items())}
    assert len(hashes) == 4
    live = graph(w={"resident_outputs": []})  # a parameter's op whose output is a copy
    assert live.to_ops()[0]["resident_outputs"] == []
    assert not ComputationGraph.from_ops("g", live.to_ops()).resident_outputs.any()


def test_what_is_held_is_no_part_of_the_hash_but_of_the_problems() -> None:
    held = graph(w={"held": [["norm", 0]]}, norm={"held": [["grad", 1]]})
    assert held.held_until.tolist() == [1, -1, 2, -1, -1]
    assert held.hash == graph().hash
    cluster = load_cluster("2xv100")
    assert PlacementProblem(held, cluster).hash != PlacementProblem(graph(), cluster).hash


def test_a_tensor_is_there_until_the_op_ends_that_it_is_held_for_on_its_device() -> None:
    time: dict[str, Any] = {"time_us": {"*": 10.0}}
    norm = {"outputs": [40, 9], **time}
    plain = graph("inference", norm=norm, grad=time)
    held = graph("inference", norm=norm | {"held": [["grad", 1]]}, grad=time)
    for placement, more in (([0, 0, 0], 9), ([0, 0, 1], 0)):
        before, after = (
            simulate(PlacementProblem(one, load_cluster("2xk80")), np.array(placement)).peak_memory
            for one in (plain, held)
        )
        # the product is made beside the first output of norm, which it reads, and the second, which it doesn't
        assert (after - before).tolist() == [more, 0]


@pytest.mark.parametrize(
    ("mode", "op", "fields", "message"),
    [
        ("training", "w", {"held": [["nobody", 0]]}, "'w': held must be"),
        ("training", "w", {"trained_bytes": 101}, "'w': trained_bytes must be 0 to param_bytes = 100, not 101"),
        ("inference", "w", {"trained_bytes": 1}, "'w': trained_bytes must be 0 in inference, not 1"),
        (
            "training",
            "grad",
            {"state_bytes": 1},
            "'grad': state_bytes must be 0, as the op has no parameter that is tr",
        ),
        ("training", "grad", {"resident_outputs": [2]}, "'grad': resident_outputs must be an index from 0 to 1, not 2"),
    ],
)
def test_wrong_fields_are_refused(mode: str, op: str, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(GraphError, match=message):
        graph(mode, **{op: fields})


@pytest.mark.parametrize(("optimizer", "tensors"), [("sgd", 1), ("momentum", 2), ("adam", 3), ("adamw", 3)])
def test_optimizers_differ_by_their_state(optimizer: str, tensors: int) -> None:
    frozen = graph(norm={"trained_bytes": 0})
    changed = with_optimizer(frozen, optimizer)
    problem = PlacementProblem(changed, load_cluster("2xv100"))
    assert problem.resident_bytes.tolist() == [100 + tensors * 100, 8, 0], "a frozen parameter has no state"
    assert (changed.hash == frozen.hash) == (tensors == 3), "Adam's is what was always counted"


def test_resident_outputs_cost_nothing_where_they_are_made_and_their_copies_do() -> None:
    """All on one device: w 400 for good, norm 8; norm's 42 bytes live while grad makes 7 more and the gradient."""
    made = graph(norm={"trained_bytes": 0}, grad={"resident_outputs": [1]})
    timed = [op | {"time_us": {"*": 10.0}} for op in made.to_ops()]
    problem = PlacementProblem(ComputationGraph.from_ops("g", timed), load_cluster("2xk80"))
    assert problem.resident_bytes.tolist() == [400, 8, 0]
    assert simulate(problem, np.zeros(3, int)).peak_memory.tolist() == [408 + 40 + 7, 0]
    # norm elsewhere: beside its own output it holds the copy of w that was sent to it
    assert simulate(problem, np.array([0, 1, 1])).peak_memory.tolist() == [400, 8 + 100 + 42]
