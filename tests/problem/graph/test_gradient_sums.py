"""Sums of gradients, as the ops of a graph say."""

from typing import Any

import pytest

from placeto.errors import GraphError
from placeto.problem.graph import ComputationGraph
from placeto.problem.graph.gradient_sums import contributions, gradient_sums

PART = {"type": "aten.mm", "outputs": [4], "pass": "backward"}
ADD = {"type": "aten.add", "outputs": [4], "pass": "backward", "gradient_of": "w"}
OPS: list[dict[str, Any]] = [
    {**PART, "name": "part 0", "micro_batch": 0},
    {**PART, "name": "part 1", "micro_batch": 1},
    {**ADD, "name": "sum 1", "inputs": [["part 0", 0], ["part 1", 0]]},
    {**PART, "name": "part 2", "micro_batch": 2},
    {**ADD, "name": "sum 2", "inputs": [["sum 1", 0], ["part 2", 0]]},
    {"name": "w/gradient", "type": "gradient", "inputs": [["sum 2", 0]], "pass": "backward", "gradient_of": "w"},
]


def test_a_sum_has_what_each_micro_batch_contributes() -> None:
    graph = ComputationGraph.from_ops("g", OPS)
    sums = gradient_sums(graph)
    assert (sums.home.tolist(), sums.ptr.tolist()) == ([5], [0, 3])
    assert (sums.tensor.tolist(), sums.addition.tolist()) == ([0, 1, 3], [-1, 2, 4])
    assert sums.additions.tolist() == [2, 4]
    assert list(contributions(graph)) == [(5, 0), (5, 1), (5, 3)]


def test_a_gradient_that_nothing_is_added_to_is_no_sum() -> None:
    graph = ComputationGraph.from_ops("g", [OPS[0], {**OPS[5], "inputs": [["part 0", 0]]}])
    assert not len(gradient_sums(graph).home)
    assert list(contributions(graph)) == [(1, 0)]


@pytest.mark.parametrize(
    ("op", "change", "message"),
    [
        (2, {"inputs": [["part 0", 0]]}, "op 'sum 1': gradient_of must be left out, as only ops of a sum have it"),
        (2, {"outputs": [4, 4]}, "op 'sum 1': gradient_of must be left out"),
        (2, {"micro_batch": 1}, "op 'sum 1': gradient_of must be left out"),
        (4, {"inputs": [["part 2", 0], ["sum 1", 0]]}, "op 'sum 2': gradient_of must be left out"),
        (5, {"inputs": [["part 2", 0]]}, "op 'w/gradient': gradient_of must be left out"),
        (3, {"inputs": [["sum 1", 0]]}, "op 'sum 1': has gradient_of, so that only the next op"),
    ],
)
def test_sums_that_are_no_chains_are_refused(op: int, change: dict[str, Any], message: str) -> None:
    records = [record | change if number == op else record for number, record in enumerate(OPS)]
    with pytest.raises(GraphError, match=message):
        ComputationGraph.from_ops("g", records)
