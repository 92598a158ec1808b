"""The graph of all micro-batches of a step, made from that of one."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from placeto.problem.graph import ComputationGraph
from placeto.problem.graph.gradient_sums import contributions, gradient_sums
from placeto.problem.step.micro_batches import Carried, Combined, Step, title

ADDITION = {"type": "aten.add", "module": "layer", "outputs": [4], "bytes_accessed": 12.0, "pass": "backward"}


def ops() -> list[dict[str, Any]]:
    """A layer with a weight and a buffer, the loss, and the gradient of the weight; a parameter that no op reads."""
    return [
        {"name": "layer.w", "type": "parameter", "module": "layer", "param_bytes": 4, "outputs": [4]},
        {"name": "layer/mm", "type": "aten.mm", "module": "layer", "flops": 8.0, "bytes_accessed": 9.0,
         "param_bytes": 2, "trained_bytes": 0, "outputs": [6], "inputs": [["layer.w", 0]], "pass": "forward",
         "micro_batch": 0, "held": [["layer/grad/mm", 0]], "tensors": ["layer.b", "unread"]},
        {"name": "loss/sum", "type": "aten.sum", "module": "loss", "bytes_accessed": 7.0, "outputs": [1],
         "inputs": [["layer/mm", 0]], "pass": "forward", "micro_batch": 0},
        {"name": "layer/grad/mm", "type": "aten.mm", "module": "layer", "flops": 8.0, "bytes_accessed": 9.0,
         "outputs": [4], "inputs": [["layer/mm", 0], ["loss/sum", 0]], "pass": "backward", "micro_batch": 0},
        {"name": "idle", "type": "parameter", "param_bytes": 3, "outputs": [3], "colocation": "idle"},
    ]  # fmt: skip


def step(count: int, **more: Any) -> Step:
    """That layer in micro-batches."""
    loss = {"type": "aten.add", "module": "", "outputs": [1], "pass": "forward"}
    sums = Combined(0, (2, 0), loss, 2), Combined(1, (3, 0), ADDITION, 3, "layer.w", 0, 1)
    options: dict[str, Any] = {"call": np.array([-1, 0, 0, 0, -1]), "calls": np.array([0, 1, 1, 1, 0])}
    graph = ComputationGraph.from_ops("layer", ops())
    return Step(graph, count, sums, trained=("layer.w",), unread=frozenset(["unread"]), **options | more)


def test_micro_batches_come_one_after_the_other_and_additions_after_what_they_add() -> None:
    graph = step(3).graph
    first = ["layer.w", "layer/mm", "loss/sum", "layer/grad/mm"]
    second = ["layer@1/mm", "loss@1/sum", "add", "layer@1/grad/mm", "layer@1/grad/add"]
    third = ["layer@2/mm", "loss@2/sum", "add_1", "layer@2/grad/mm", "layer@2/grad/add", "layer.w/gradient"]
    assert graph.op_names == (*first, *second, *third, "idle")
    assert graph.micro_batches.tolist() == [-1, 0, 0, 0, 1, 1, -1, 1, -1, 2, 2, -1, 2, -1, -1, -1]
    reads = {record["name"]: record["inputs"] for record in graph.to_ops()}
    assert reads["layer@2/grad/mm"] == [["layer@2/mm", 0], ["loss@2/sum", 0]]
    assert reads["layer@2/mm"] == [["layer.w", 0]]
    assert reads["layer@1/grad/add"] == [["layer/grad/mm", 0], ["layer@1/grad/mm", 0]]
    assert reads["layer@2/grad/add"] == [["layer@1/grad/add", 0], ["layer@2/grad/mm", 0]]
    assert reads["layer.w/gradient"] == [["layer@2/grad/add", 0]]


def test_sums_of_gradients_are_as_written() -> None:
    graph = step(3).graph
    sums, names = gradient_sums(graph), graph.op_names
    assert [names[op] for op in sums.home] == ["layer.w/gradient"]
    made_by = [names[graph.producer[tensor]] for tensor in sums.tensor]
    assert made_by == ["layer/grad/mm", "layer@1/grad/mm", "layer@2/grad/mm"]
    assert [names[op] for op in sums.additions] == ["layer@1/grad/add", "layer@2/grad/add"]
    assert len(list(contributions(graph))) == sums.ptr[1] == 3
    assert step(3).gradients == {"layer.w": ("layer.w/gradient", 0)}


def test_what_micro_batches_share_counts_once() -> None:
    graph = step(3).graph
    assert graph.param_bytes.sum() == ComputationGraph.from_ops("", ops()).param_bytes.sum()
    assert graph.trained_bytes.sum() == 7
    assert graph.flops.sum() == 3 * 16
    assert graph.module_tensors[graph.index["layer/mm"]] == ("layer.b", "unread")
    assert graph.module_tensors[graph.index["layer@2/mm"]] == ("layer.b",)


def test_parameters_are_with_their_gradients_and_tensors_are_held_in_their_micro_batch() -> None:
    graph = step(3).graph
    together = graph.colocation == graph.colocation[graph.index["layer.w"]]
    assert np.array(graph.op_names)[together].tolist() == ["layer.w", "layer.w/gradient"]
    assert graph.resident_outputs[graph.output_ptr[graph.index["layer.w/gradient"]]]
    held = {record["name"]: record.get("held") for record in graph.to_ops()}
    assert held["layer/mm"] == [["layer/grad/mm", 0]]
    assert held["layer@2/mm"] == [["layer@2/grad/mm", 0]]


def test_one_micro_batch_keeps_its_gradient_where_it_is_made() -> None:
    graph = step(1).graph
    assert graph.op_names == tuple(record["name"] for record in ops())
    assert (graph.micro_batches == -1).all()
    assert graph.colocation.tolist() == [0, -1, -1, 0, 1]
    assert graph.resident_outputs.tolist() == [True, False, False, True, True]
    assert step(1).gradients == {"layer.w": ("layer/grad/mm", 0)}
    assert not len(gradient_sums(graph).home)


def test_state_goes_from_one_micro_batch_to_the_next() -> None:
    graph = step(3, carried=(Carried(1, 0, (1, 0)),)).graph
    reads = {record["name"]: record["inputs"] for record in graph.to_ops()}
    assert reads["layer/mm"] == [["layer.w", 0]]
    assert reads["layer@2/mm"] == [["layer@1/mm", 0], ["layer.w", 0]]


def test_outputs_are_joined() -> None:
    cat = {"type": "aten.cat", "module": "", "outputs": [18], "bytes_accessed": 36.0, "pass": "forward"}
    some = ComputationGraph.from_ops("layer", [{**op, "trained_bytes": 0, "held": []} for op in ops()[:2]], "inference")
    graph = Step(some, 3, (Combined(0, (1, 0), cat), Combined(1, None, cat))).graph
    record = graph.to_ops()[graph.index["cat"]]
    assert record["inputs"] == [["layer/mm", 0], ["layer/mm_1", 0], ["layer/mm_2", 0]]
    assert not graph.to_ops()[graph.index["cat_1"]]["inputs"]
    assert graph.op_names[-2:] == ("cat", "cat_1")


def test_parts_of_shared_tensors_stay_with_them() -> None:
    cast = {"name": "cast", "type": "aten._to_copy", "bytes_accessed": 6.0, "outputs": [2], "inputs": [["layer.w", 0]],
            "colocation": "c"}  # fmt: skip
    cut = {"type": "aten.slice", "outputs": [1], "micro_batch": 0, "pass": "forward"}
    more = [cast, {**cut, "name": "slice", "inputs": [["cast", 0]], "colocation": "c"}]
    more += [{**cut, "name": "of mm", "inputs": [["layer/mm", 0]], "colocation": "d"}]
    records = [*ops()[:2], *more]
    records[1] = {**records[1], "colocation": "d", "held": []}
    graph = Step(ComputationGraph.from_ops("layer", records), 3).graph
    groups: dict[int, list[str]] = {}
    for name, group in zip(graph.op_names, graph.colocation.tolist(), strict=True):
        groups.setdefault(group, []).append(name)
    assert groups.pop(-1) == ["layer.w"]
    assert list(groups.values()) == [
        ["layer/mm", "slice_1"], ["_to_copy", "slice", "slice_2", "slice_4"],
        ["layer/mm_1", "slice_3"], ["layer/mm_2", "slice_5"],
    ]  # fmt: skip


@pytest.mark.parametrize("count", [2, 5])
def test_times_are_those_of_one_micro_batch(count: int) -> None:
    timed = replace(step(1).micro_batch, time_us={"k80": np.array([0.0, 1.0, 2.0, 4.0, 0.0])})
    graph = replace(step(count), micro_batch=timed).graph
    assert np.nansum(graph.time_us["k80"]) == 7.0 * count
    assert np.isnan(graph.time_us["k80"]).sum() == 2 * (count - 1) + 1


def test_titles() -> None:
    assert title("", 0, "forward", "aten.div") == "div"
    assert title("a", 2, "recomputation", "aten.div") == "a@2/grad/div"
