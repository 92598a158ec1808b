"""Sums of gradients, as the edges of a graph say."""

from pathlib import Path
from typing import Any

import pytest

from placeto.problem.fields import write_json
from placeto.problem.graph import ComputationGraph, load_graph
from placeto.problem.graph.gradient_sums import contributions, gradient_sums

PART = {"type": "aten.mm", "outputs": [4], "pass": "backward"}
ADD = {"type": "aten.add", "outputs": [4], "pass": "backward"}
OPS: list[dict[str, Any]] = [
    {**PART, "name": "part 0", "micro_batch": 0},
    {**PART, "name": "part 1", "micro_batch": 1},
    {**ADD, "name": "sum 1", "inputs": [["part 0", 0], ["part 1", 0]]},
    {**PART, "name": "part 2", "micro_batch": 2},
    {**ADD, "name": "sum 2", "inputs": [["sum 1", 0], ["part 2", 0]]},
    {"name": "w/gradient", "type": "gradient", "inputs": [["sum 2", 0]], "pass": "backward"},
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
    ("op", "change"),
    [
        (2, {"inputs": [["part 0", 0]]}),
        (2, {"outputs": [4, 4]}),
        (2, {"micro_batch": 1}),
        (2, {"type": "aten.mul"}),
        (2, {"pass": "forward"}),
        (3, {"inputs": [["sum 1", 0]]}),
    ],
)
def test_what_is_no_addition_or_is_read_elsewhere_is_a_contribution(op: int, change: dict[str, Any]) -> None:
    records = [record | change if number == op else record for number, record in enumerate(OPS)]
    sums = gradient_sums(ComputationGraph.from_ops("g", records))
    assert sums.addition.tolist() == [-1, 4]
    assert sums.ptr.tolist() == [0, 2]


def test_files_of_earlier_versions_name_the_parameter(tmp_path: Path) -> None:
    path = tmp_path / "old.json"
    named = [op | {"gradient_of": "w"} if op["name"].startswith(("sum", "w")) else op for op in OPS]
    write_json({"format": "placeto.graph/1", "ops": named}, path)
    assert gradient_sums(load_graph(path)).addition.tolist() == [-1, 2, 4]
