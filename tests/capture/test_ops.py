"""Which nodes of a trace become ops, and what they cost."""

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from placeto.capture.trace import capture_training
from tests.captures import Made, inputs_of, meta, record, training


@pytest.mark.parametrize(
    ("conv", "forward"),
    [
        (nn.Conv2d(8, 12, 3, padding=1, bias=False), 2 * 2 * 12 * 8 * 9 * 10 * 10),
        (nn.Conv2d(8, 12, 3, stride=2, groups=4, bias=False), 2 * 2 * 12 * 2 * 9 * 4 * 4),
        (nn.Conv2d(8, 8, 3, padding=1, groups=8, bias=False), 2 * 2 * 8 * 9 * 10 * 10),
        (nn.ConvTranspose2d(8, 12, 2, stride=2, bias=False), 2 * 2 * 12 * 8 * 4 * 10 * 10),
    ],
)
def test_flops_of_convolutions(conv: nn.Module, forward: int) -> None:
    x = meta(2, 8, 10, 10)
    graph = training(nn.Sequential(nn.Conv2d(8, 8, 1, bias=False), conv), x)
    assert record(graph, "1/convolution")["flops"] == forward
    of_input, of_weight = record(graph, "1/grad/convolution_backward"), record(graph, "1/grad/convolution_backward_1")
    assert of_input["flops"] == of_weight["flops"] == forward
    assert (of_input["outputs"], of_weight["outputs"]) == ([4 * 2 * 8 * 10 * 10], [4 * conv.weight.numel()])
    # beside the gradient of its output, here a constant that is there after the loss; of the other input each needs the
    # shape alone
    wait = [["loss/sum", 1]]
    assert (of_input["inputs"], of_weight["inputs"]) == ([["1.weight", 0], *wait], [["0/convolution", 0], *wait])
    first = record(graph, "0/grad/convolution_backward")
    assert first["flops"] == record(graph, "0/convolution")["flops"]  # of the weight alone
    assert first["outputs"] == [4 * 8 * 8]


def test_in_place_ops_become_ops_with_outputs() -> None:
    graphs = [
        training(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.ReLU(inplace=in_place)), meta(2, 4))
        for in_place in (False, True)
    ]
    assert graphs[0].hash == graphs[1].hash
    assert "1/native_batch_norm" in graphs[0].index
    norm = record(graphs[0], "1/native_batch_norm")
    assert norm["param_bytes"] == 2 * 4 * 4 + 8  # its buffers: running mean and variance, number of batches
    assert norm["outputs"] == [2 * 4 * 4, 4 * 4, 4 * 4]


def test_views_are_left_out_and_slices_cost_nothing() -> None:
    def slices(self: Any, x: Tensor) -> Tensor:
        a, b, c = self.layer(x).t().t().reshape(2, 12).chunk(3, dim=1)
        return torch.sigmoid(a) * torch.tanh(b) + c.exp()

    graph = training(Made(slices, layer=nn.Linear(8, 12, bias=False)), meta(2, 8))
    assert not {"aten.t", "aten.view", "aten.detach", "aten.alias"} & set(graph.op_types)
    split = record(graph, "split")
    assert (split["flops"], split["bytes_accessed"]) == (0.0, 0.0)
    assert split["outputs"] == [4 * 2 * 4] * 3
    assert split["colocation"] == record(graph, "layer/mm")["colocation"]
    assert record(graph, "tanh")["inputs"] == [["split", 1]]
    free = (graph.flops == 0) & (graph.bytes_accessed == 0)
    assert np.all(graph.colocation[free] >= 0)


def test_constants_are_left_out() -> None:
    masked = Made(
        lambda self, x: self.layer(x) * self.mask + torch.zeros(4) + torch.zeros_like(x) + self.plain,
        layer=nn.Linear(4, 4),
        plain=torch.ones(4),
    )
    masked.register_buffer("mask", torch.ones(4))
    graph = capture_training(masked, [torch.ones(2, 4)], lambda y: y.sum())
    assert Counter(graph.op_types)["aten.add"] == 3
    assert not {"aten.zeros", "aten.zeros_like", "aten.ones_like"} & set(graph.op_types)
    assert record(graph, "mul")["param_bytes"] == 4 * 4
    assert inputs_of(graph, "mul") == ["layer/addmm"]


def test_what_is_written_back_to_buffers_is_in_the_graph() -> None:
    """A codebook is averaged after the output is made, and nothing else reads the product; a counter is left out."""

    def averaged(self: Any, x: Tensor, codes: Tensor) -> Tensor:
        y: Tensor = self.layer(x)
        with torch.no_grad():
            self.sums.mul_(0.9).add_(codes.t() @ y)
            self.calls += 1
        return y

    codebook = Made(averaged, layer=nn.Linear(4, 3))
    codebook.register_buffer("sums", torch.zeros(5, 3))
    codebook.register_buffer("calls", torch.zeros(()))
    graph = capture_training(codebook, [torch.ones(7, 4), torch.ones(7, 5)], lambda y: y.square().mean())
    assert graph.op_types.count("aten.mm") == 2
    assert graph.flops.sum() == 2 * 7 * 4 * 3 * 2 + 2 * 5 * 7 * 3
    assert graph.op_types.count("aten.add") == 1
