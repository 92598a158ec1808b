"""The optimizer's update as ops of the graph."""

import numpy as np
import pytest
import torch
from torch import nn

from placeto.capture import capture_training
from tests.captures import Made, meta, mlp, record


@pytest.mark.parametrize(("optimizer", "tensors"), [("sgd", 3), ("momentum", 5), ("adam", 7)])
def test_an_op_for_each_parameter_reads_and_writes_it_where_it_is(optimizer: str, tensors: int) -> None:
    def capture(**options: bool) -> tuple:
        graph = capture_training(mlp().to("meta"), [meta(2, 8)], lambda y: y.sum(), optimizer=optimizer, **options)
        return graph, graph.num_ops

    plain, before = capture()
    graph, after = capture(optimizer_step=True)
    assert after == before + 4
    assert graph.op_names[:before] == plain.op_names
    for key in ("colocation", "param_bytes", "state_bytes", "trained_bytes", "bytes_accessed", "flops"):
        np.testing.assert_array_equal(getattr(graph, key)[:before], getattr(plain, key))
    update = record(graph, f"0.weight/{optimizer}")
    assert update["bytes_accessed"] == tensors * 16 * 8 * 4
    assert update["inputs"] == [["0.weight", 0], ["0/grad/mm", 0]]
    assert (update["outputs"], update["module"]) == ([], "0")
    assert update["colocation"] == record(graph, "0.weight")["colocation"] == record(graph, "0/grad/mm")["colocation"]


def test_frozen_parameters_have_none_and_constant_gradients_no_edge() -> None:
    parts = {name: nn.Parameter(torch.ones(3), requires_grad=name == "added") for name in ("frozen", "added")}
    module = Made(lambda self, x: (x * self.frozen + self.added).sum(), **parts)
    graph = capture_training(module, [torch.ones(3)], optimizer_step=True)
    updates = [op for op, kind in zip(graph.op_names, graph.op_types, strict=True) if kind == "optimizer.adam"]
    assert updates == ["added/adam"]
    assert record(graph, "added/adam")["inputs"] == [["added", 0]]
    assert record(graph, "added/adam")["colocation"] == record(graph, "added")["colocation"]


@pytest.mark.parametrize("optimizer_step", [False, True])
def test_optimizers_that_do_not_exist_are_refused(optimizer_step: bool) -> None:
    with pytest.raises(ValueError, match=r"optimizer must be one of .*adam.*, not 'rprop'"):
        capture_training(
            nn.Linear(2, 2), [meta(2, 2)], lambda y: y.sum(), optimizer="rprop", optimizer_step=optimizer_step
        )
