"""What a checkpoint computes again has the random numbers of the forward pass."""

import copy
from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import placeto
from placeto.capture.trace import capture_training, trace_training
from placeto.runtime.unrolled import unrolled

Block = Callable[[Tensor], Tensor]
once = partial(checkpoint, use_reentrant=False)
again = partial(checkpoint, use_reentrant=True)


class Dropped(nn.Module):
    """Blocks with dropout, in checkpoints; the output is linear in all weights of a block."""

    def __init__(self, call: Callable[[Block, Tensor], Tensor], blocks: int = 2) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(8, 8, bias=False), nn.Dropout(0.5)) for _ in range(blocks))
        self.call = call

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = self.call(block, x)
        return x


def square(y: Tensor) -> Tensor:
    return y.square().mean()


CALLS: dict[str, Callable[[Block, Tensor], Tensor]] = {
    "plain": once,
    "reentrant": again,
    "nested": lambda block, x: once(lambda y: once(block, y) + block(y), x),
    "another draw between": lambda block, x: once(block, x) * torch.rand(8),
    "a draw of no module": lambda block, x: once(lambda y: block(nn.functional.dropout(y, 0.5)), x),
    "draws that make tensors": lambda block, x: once(lambda y: block(y) * torch.rand(8) + torch.randn_like(y), x),
}


def placed_and_eager(module: nn.Module, x: Tensor) -> tuple[Tensor, Tensor, nn.Module]:
    """The loss of a step on one device, that of eager execution from the same seed, and the module that ran it."""
    twin = copy.deepcopy(module)
    placed = placeto.place(module, [x], loss=square, cluster="2xv100", placer="single")
    torch.manual_seed(1)
    loss = placed.compile(devices=["cpu:0", "cpu:1"])(x)
    torch.manual_seed(1)
    wanted = square(twin(x.detach()))
    wanted.backward()
    return loss, wanted.detach(), twin


@pytest.mark.parametrize("call", CALLS)
def test_gradients_are_those_of_eager(call: str) -> None:
    module, x = Dropped(CALLS[call]), torch.randn(4, 8)
    if call == "reentrant":
        module.blocks.insert(0, nn.Identity())
        module.call = lambda block, x: block(x) if isinstance(block, nn.Identity) else again(block, x.requires_grad_())
    loss, wanted, twin = placed_and_eager(module, x)
    assert torch.equal(loss, wanted)
    for mine, its in zip(module.parameters(), twin.parameters(), strict=True):
        assert its.grad is not None
        assert mine.grad is not None
        assert torch.equal(mine.grad, its.grad)


class Turned(nn.Module):
    """A leaky ReLU with random slopes of a transposed tensor."""

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.rrelu(x.transpose(1, 2), training=True)


@pytest.mark.parametrize(
    "layer",
    [
        nn.Sequential(Turned(), nn.Dropout()),
        nn.TransformerEncoderLayer(8, 2, 16, batch_first=True),
        nn.Sequential(nn.Unflatten(2, (2, 4)), nn.Conv2d(6, 6, 1).to(memory_format=torch.channels_last), nn.Dropout()),
    ],
)
def test_masks_of_tensors_that_lie_in_another_order_are_those_of_eager(layer: nn.Module) -> None:
    module, x = nn.Sequential(nn.Linear(8, 8), layer, nn.Flatten(2)), torch.randn(4, 6, 8)
    loss, wanted, twin = placed_and_eager(module, x)
    assert loss.item() == wanted.item()
    for mine, its in zip(module.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, its.grad)


@pytest.mark.parametrize("micro_batches", [1, 4])
def test_masks_agree_where_several_cores_draw(micro_batches: int) -> None:
    module, x = Dropped(once), torch.randn(4, 8)
    placed = placeto.place(module, [x], loss=square, cluster="2xv100", placer="roundrobin", micro_batches=micro_batches)
    loss = placed.compile(devices=["cpu:0", "cpu:1"])(x)
    for parameter in module.parameters():  # the loss is quadratic in each: Euler's theorem on homogeneous functions
        assert parameter.grad is not None
        assert (parameter * parameter.grad).sum().item() == pytest.approx(2.0 * loss.item(), rel=1e-4)


def test_masks_are_drawn_in_the_order_of_memory_in_all_micro_batches() -> None:
    """Numbers are drawn in each micro-batch anew."""

    class Turned(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.dropout = nn.Linear(8, 8), nn.Dropout(0.5)

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.dropout(self.layer(x).transpose(1, 2))
            return y

    traced = unrolled(trace_training(Turned(), [torch.empty(8, 4, 8)], square, micro_batches=4)).traced
    drawn = [str(node.target) for node in traced.graph.nodes if "bernoulli" in str(node.target)]
    assert drawn == ["aten.bernoulli_.float"] * 4


def test_the_graph_draws_again() -> None:
    graph = capture_training(Dropped(once, 3), [torch.empty(4, 8)], square)
    parts = [part for kind, part in zip(graph.op_types, graph.passes, strict=True) if kind == "aten.bernoulli"]
    assert parts.count("forward") == parts.count("recomputation") == 3


def test_what_no_module_runs_is_computed_again_too() -> None:
    module = Dropped(lambda block, x: once(lambda y: block(y.sin()), x), 3)
    graph = capture_training(module, [torch.empty(4, 8)], square)
    parts = [part for kind, part in zip(graph.op_types, graph.passes, strict=True) if kind == "aten.sin"]
    assert parts.count("forward") == parts.count("recomputation") == 3
