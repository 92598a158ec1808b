"""What forward computes and nobody reads is in the graph, as PyTorch computes and holds it."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from placeto.capture import capture_inference, capture_training
from tests.captures import Made, on_one_device
from tests.memory_meter import peak_of_training_step


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


def layers(count: int) -> nn.Sequential:
    return nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.GELU()) for _ in range(count)))


def features(self: Any, x: Tensor) -> dict[int, Tensor]:
    """Returns what each of its layers computes."""
    outputs = {}
    for number, layer in enumerate(self.layers):
        x = outputs[number] = layer(x)
    return outputs


def aside_first(self: Any, x: Tensor) -> dict[Any, Tensor]:
    """Has a second head of three layers, which no gradient needs."""
    hidden = self.layers(x)
    return {2: hidden * 2, "aside": self.aside(hidden).softmax(-1)}


def aside_last(self: Any, x: Tensor) -> dict[Any, Tensor]:
    hidden = self.layers(x)
    return {"aside": self.aside(hidden).exp(), 2: hidden * 2}


@pytest.mark.parametrize(("forward", "count"), [(features, 8), (aside_first, 2), (aside_last, 2)])
def test_unread_outputs_are_held_until_the_loss_is_there(forward: Callable[..., Any], count: int) -> None:
    module, x = Made(forward, layers=layers(count), **({} if count > 2 else {"aside": layers(3)})), torch.randn(256, 8)

    def squares(outputs: dict[int, Tensor]) -> Tensor:
        return outputs[2].square().mean()

    squares(module(x)).backward()
    for parameter in module.parameters():
        parameter.grad = None if parameter.grad is None else torch.zeros_like(parameter)
    real = peak_of_training_step(module, [x], squares, [])
    graph = capture_training(module, [x], squares)
    used = [p for p in module.parameters() if p.grad is not None]
    kept = sum(p.nbytes for p in module.parameters()) + 3 * sum(p.nbytes for p in used)  # gradients and two moments
    assert on_one_device(graph).peak_memory[0] - kept == real
