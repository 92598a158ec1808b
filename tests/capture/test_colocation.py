"""Captured ops that share a device: a parameter and its final gradient by rule, its first user by choice."""

from collections import Counter

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from placeto.capture.trace import capture_inference, capture_training
from placeto.problem.graph.gradient_sums import colocation_groups
from tests.captures import Made, Shared, colocated, inputs_of, kept, meta, record, training


def test_final_gradients_are_colocated_with_their_parameters() -> None:
    graph = training(
        nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.LayerNorm(16), nn.Linear(16, 2)), meta(2, 3, 4, 4)
    )
    # one op makes the gradients of weight and bias
    assert kept(graph, "0.weight") == {"0.weight", "0.bias", "0/convolution", "0/grad/convolution_backward"}
    norm = {"2.weight", "2.bias", "2/native_layer_norm", "2/grad/native_layer_norm_backward"}
    assert kept(graph, "2.weight") == norm
    assert colocated(graph, "3.weight") == {"3.weight", "3/grad/mm_1"}
    assert colocated(graph, "3.bias") == {"3.bias", "3/grad/sum"}
    # two ops: of the weight (a transpose of it is left out), and of the bias; the input's gradient is free
    assert kept(graph, "3.weight") == {"3.weight", "3.bias", "3/addmm", "3/grad/mm_1", "3/grad/sum"}
    assert kept(graph, "3/grad/mm") == {"3/grad/mm"}


def test_of_a_sum_of_gradients_only_the_last_is_colocated() -> None:
    graph = training(Shared(), meta(2, 8))
    assert kept(graph, "layer.weight") == {"layer.weight", "layer/mm", "layer/grad/add"}
    assert colocated(graph, "layer.weight") == {"layer.weight", "layer/grad/add"}
    for name in ("layer/mm", "layer@2/grad/mm", "layer@1/grad/mm", "layer/grad/mm", "layer@1/grad/add"):
        assert graph.colocation[graph.index[name]] == -1


def test_gradient_that_is_a_slice_is_colocated_through_its_maker() -> None:
    two = Made(
        lambda self, x: x @ torch.cat([self.a, self.b]),
        a=nn.Parameter(torch.zeros(4, 8)),
        b=nn.Parameter(torch.zeros(4, 8)),
    )
    graph = training(two, meta(2, 8))
    assert kept(graph, "a") == {"a", "b", "cat", "grad/mm", "grad/slice", "grad/slice_1"}


def test_op_that_makes_a_gradient_for_others_too_is_colocated() -> None:
    learned = Made(
        lambda self, words: self.output(torch.tanh(self.embedding(words) + self.start)),
        embedding=nn.Embedding(10, 4),
        output=nn.Linear(4, 3, bias=False),
        start=nn.Parameter(torch.zeros(5, 4)),
    )
    graph = training(learned, meta(5).long())
    # of `start` without further ado, and of the embedding after one more op
    assert kept(graph, "start") == {"start", "add", "grad/tanh_backward"}
    backward = "embedding/grad/embedding_dense_backward"
    assert inputs_of(graph, backward) == ["grad/tanh_backward"]
    assert kept(graph, backward) == {"embedding.weight", "embedding/embedding", backward}
    lookup = record(graph, "embedding/embedding")
    assert lookup["bytes_accessed"] == 2 * 4 * 5 * 4 + 8 * 5  # as much read as written, and the words


def test_parameters_without_a_gradient_of_their_own() -> None:
    layers = {name: nn.Linear(4, 4) for name in ("frozen", "layer", "unused")}
    layers["frozen"].requires_grad_(False)
    last = nn.Parameter(torch.zeros(2, 4))
    graph = training(Made(lambda self, x: self.layer(self.frozen(x)) + self.last, **layers, last=last), meta(2, 4))
    assert kept(graph, "last") == {"last", "add"}  # its gradient is constant
    assert kept(graph, "frozen.weight") == {"frozen.weight", "frozen.bias", "frozen/addmm"}
    gradients = {"layer/grad/mm", "layer/grad/sum"}
    assert kept(graph, "layer.weight") == {"layer.weight", "layer.bias", "layer/addmm", *gradients}
    assert kept(graph, "unused.weight") == {"unused.weight", "unused.bias"}


def test_without_a_training_step_there_are_no_gradients_to_colocate() -> None:
    graph = capture_inference(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), [meta(2, 4)])
    assert kept(graph, "0.weight") == {"0.weight", "0.bias", "0/addmm"}
    assert kept(graph, "1.weight") == {"1.weight", "1.bias", "1/addmm"}


@pytest.mark.parametrize(
    ("module", "inputs"),
    [
        (nn.LSTM(16, 16, num_layers=2), [meta(6, 2, 16)]),
        (nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32), 4, enable_nested_tensor=False), [meta(6, 2, 16)]),
        (
            nn.Sequential(*[nn.Sequential(nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4)) for _ in range(8)]),
            [meta(1, 4, 32, 32)],
        ),
    ],
)
def test_colocation_stays_within_a_layer(module: nn.Module, inputs: list[Tensor]) -> None:
    graph = capture_training(
        module.to("meta"), inputs, lambda y: y[0].sum() if isinstance(y, tuple) else y.square().sum()
    )
    parameters, kept_together = np.array(graph.op_types) == "parameter", colocation_groups(graph)
    groups = Counter(kept_together[parameters].tolist())
    assert -1 not in groups
    assert max(groups.values()) <= 2  # weight and bias
    for group in groups:
        modules = {graph.modules[i].removesuffix(".out_proj") for i in np.flatnonzero(kept_together == group)}
        assert len(modules) == 1


def test_sliced_parameter_goes_with_the_user_of_the_slice() -> None:
    half = Made(lambda self, x: x @ self.weight[:4], weight=nn.Parameter(torch.zeros(8, 8)))
    graph = training(half, meta(2, 4))
    assert inputs_of(graph, "slice") == ["weight"]
    assert {"weight", "slice", "mm"} <= kept(graph, "weight")
    assert "mm" not in colocated(graph, "weight")
