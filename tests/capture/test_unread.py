"""What forward computes and nobody reads is in the graph, as PyTorch computes and holds it."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from placeto.capture import capture_inference, capture_training


class TwoHeads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.small, self.large = nn.Linear(8, 8), nn.Linear(8, 2), nn.Linear(8, 400)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        hidden = torch.tanh(self.body(x))
        self.large(hidden).softmax(-1).max(-1)  # a statistic that is thrown away
        return {"small": self.small(hidden), "large": self.large(hidden)}


def loss(output: dict[str, Any]) -> Tensor:
    return output["small"].square().mean()


def test_flops_of_a_step_are_those_of_pytorch() -> None:
    module, x = TwoHeads(), torch.randn(16, 8)
    with FlopCounterMode(display=False) as counter:
        loss(module(x)).backward()
    graph = capture_training(module, [x], loss)
    assert graph.flops.sum() == counter.get_total_flops()
    parts = capture_training(module, [x], loss, micro_batches=4)
    assert parts.flops.sum() == graph.flops.sum()


def test_an_inference_has_what_is_thrown_away_and_no_views_of_it() -> None:
    module = TwoHeads()
    graph = capture_inference(module, [torch.randn(16, 8)])
    assert graph.modules.count("large") == 2 * 1 + 2  # two products, weight and bias
    assert "aten.max" in {kind.partition(".dim")[0] for kind in graph.op_types}
