"""What a checkpoint computes again has the random numbers of the forward pass."""

import copy
from collections.abc import Callable
from functools import partial, reduce
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from placeto.capture.trace import capture_training, trace_training
from placeto.runtime.unrolled import unrolled
from tests.captures import Made, called, square
from tests.runtime.true import assert_next_step, step_of

Block = Callable[[Tensor], Tensor]
once = partial(checkpoint, use_reentrant=False)
again = partial(checkpoint, use_reentrant=True)


def dropped(call: Callable[[Block, Tensor], Tensor], blocks: int = 2) -> nn.Module:
    """Blocks with dropout, in checkpoints; the output is linear in all weights of a block."""
    each = nn.ModuleList(nn.Sequential(nn.Linear(8, 8, bias=False), nn.Dropout(0.5)) for _ in range(blocks))
    return Made(lambda self, x: reduce(lambda x, block: self.call(block, x), self.blocks, x), blocks=each, call=call)


CALLS: dict[str, Callable[[Block, Tensor], Tensor]] = {
    "plain": once,
    "reentrant": again,
    "nested": lambda block, x: once(lambda y: once(block, y) + block(y), x),
    "another draw between": lambda block, x: once(block, x) * torch.rand(8),
    "a draw of no module": lambda block, x: once(lambda y: block(nn.functional.dropout(y, 0.5)), x),
    "draws that make tensors": lambda block, x: once(lambda y: block(y) * torch.rand(8) + torch.randn_like(y), x),
}


@pytest.mark.parametrize("call", CALLS)
def test_gradients_are_those_of_eager(call: str) -> None:
    module, x = dropped(CALLS[call]), torch.randn(4, 8)
    if call == "reentrant":
        module.blocks.insert(0, nn.Identity())
        module.call = lambda block, x: block(x) if isinstance(block, nn.Identity) else again(block, x.requires_grad_())
    twin = copy.deepcopy(module)
    assert_next_step(step_of(module, [x], loss=square, placer="single"), module, twin, x)


def leaky(x: Tensor) -> Tensor:
    """A leaky ReLU with random slopes of a transposed tensor."""
    return nn.functional.rrelu(x.transpose(1, 2), training=True)


@pytest.mark.parametrize(
    "layer",
    [
        nn.Sequential(called(leaky), nn.Dropout()),
        nn.TransformerEncoderLayer(8, 2, 16, batch_first=True),
        nn.Sequential(nn.Unflatten(2, (2, 4)), nn.Conv2d(6, 6, 1).to(memory_format=torch.channels_last), nn.Dropout()),
    ],
)
def test_masks_of_tensors_that_lie_in_another_order_are_those_of_eager(layer: nn.Module) -> None:
    module, x = nn.Sequential(nn.Linear(8, 8), layer, nn.Flatten(2)), torch.randn(4, 6, 8)
    twin = copy.deepcopy(module)
    assert_next_step(step_of(module, [x], loss=square, placer="single"), module, twin, x, rtol=1.3e-6, atol=1e-5)


@pytest.mark.parametrize("micro_batches", [1, 4])
def test_masks_agree_where_several_cores_draw(micro_batches: int) -> None:
    module, x = dropped(once), torch.randn(4, 8)
    loss = step_of(module, [x], loss=square, micro_batches=micro_batches)(x)
    for parameter in module.parameters():  # the loss is quadratic in each: Euler's theorem on homogeneous functions
        assert parameter.grad is not None
        assert (parameter * parameter.grad).sum().item() == pytest.approx(2.0 * loss.item(), rel=1e-4)


def test_masks_are_drawn_in_the_order_of_memory_in_all_micro_batches() -> None:
    """Numbers are drawn in each micro-batch anew."""
    parts = {"layer": nn.Linear(8, 8), "dropout": nn.Dropout(0.5)}
    turned = Made(lambda self, x: self.dropout(self.layer(x).transpose(1, 2)), **parts)
    traced = unrolled(trace_training(turned, [torch.empty(8, 4, 8)], square, micro_batches=4)).traced
    drawn = [str(node.target) for node in traced.graph.nodes if "bernoulli" in str(node.target)]
    assert drawn == ["aten.bernoulli_.float"] * 4


@pytest.mark.parametrize(
    ("call", "kind"), [(once, "aten.bernoulli"), (lambda block, x: once(lambda y: block(y.sin()), x), "aten.sin")]
)
def test_the_graph_draws_and_computes_again_also_what_no_module_runs(call: Any, kind: str) -> None:
    graph = capture_training(dropped(call, 3), [torch.empty(4, 8)], square)
    parts = [part for op, part in zip(graph.op_types, graph.passes, strict=True) if op == kind]
    assert parts.count("forward") == parts.count("recomputation") == 3
