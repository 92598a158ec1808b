"""Attention of a CPU on GPUs: which calls, and the same shapes; on a GPU, the same numbers."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.fx import Node
from torch.nn import functional

from placeto.runtime.attention import gpu_attention
from placeto.runtime.program import Program
from placeto.runtime.steps import real_training


class Attends(nn.Module):
    def __init__(self, width: int, heads: int, causal: bool, mask: Tensor | None) -> None:
        super().__init__()
        self.heads, self.causal, self.qkv = heads, causal, nn.Linear(width, 3 * width)
        self.register_buffer("mask", mask)

    def forward(self, x: Tensor) -> Tensor:
        b, t, w = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, w // self.heads).permute(2, 0, 3, 1, 4).unbind()
        return functional.scaled_dot_product_attention(q, k, v, self.mask, is_causal=self.causal)


def program_of(
    width: int = 32, length: int = 50, causal: bool = True, mask: Tensor | None = None, **options: Any
) -> tuple[Program, list[Any], Any]:
    torch.manual_seed(0)
    dtype = options.get("dtype", torch.float32)
    module, x = Attends(width, 4, causal, mask).to(dtype), torch.randn(2, length, width, dtype=dtype)
    step = real_training(module, [x], lambda y: y.square().sum())
    return Program.of(step.capture.traced), step.leaves, step.eager


def calls(program: Program) -> list[Node]:
    return [node for node in program.calls if "attention" in str(node.target)]


@pytest.mark.parametrize(
    ("options", "taken"),
    [
        ({}, True),
        ({"causal": False, "mask": torch.zeros(50, 50)}, True),
        ({"causal": False, "mask": torch.zeros(50, 50) > 0}, True),  # made a mask of numbers before
        ({"width": 16}, False),
        ({"dtype": torch.float64}, False),
    ],
)
def test_which_calls_run_on_a_gpu(options: Any, taken: bool) -> None:
    program, _, _ = program_of(**options)
    assert len(calls(program)) == 2
    for node in program.calls:
        assert (gpu_attention(node) is not None) == (taken and "attention" in str(node.target))


@pytest.mark.parametrize("masked", [False, True])
def test_shapes_and_strides_are_those_of_the_call(masked: bool) -> None:
    program, _, _ = program_of(causal=not masked, mask=torch.zeros(1, 50) if masked else None)

    def like(value: Any) -> Any:
        if not isinstance(value, Node):
            return value
        found = value.meta["val"]
        return torch.empty_strided(found.shape, found.stride(), dtype=found.dtype, device="meta")

    for node in calls(program):
        function: Any = gpu_attention(node)
        made = function(*map(like, node.args), **{key: like(value) for key, value in node.kwargs.items()})
        for mine, its in zip(made, node.meta["val"], strict=True):
            assert mine.shape == its.shape
            assert mine.dtype == its.dtype
            assert mine.dim() < 4 or mine.stride() == its.stride()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize(
    "options",
    [
        {"length": 64},
        {"causal": False},
        {"causal": False, "mask": torch.randn(50, 50, generator=torch.Generator().manual_seed(0))},
        {"causal": False, "mask": torch.ones(50, 50).tril() > 0},
        {"causal": False, "mask": torch.randn(2, 1, 1, 50, generator=torch.Generator().manual_seed(0))},
        {"width": 16},
        {"dtype": torch.bfloat16},
    ],
)
def test_gradients_on_a_gpu(options: Any) -> None:
    program, leaves, eager = program_of(**options)
    there = Program(program.inputs, program.calls, program.outputs, torch.device("cuda:0"))
    with torch.no_grad():
        _, *made = there.compile()(*there.moved(leaves))
    for mine, its in zip(made, eager(), strict=True):
        assert torch.allclose(
            mine.cpu(), its, rtol=0, atol=(0.02 if its.dtype == torch.bfloat16 else 1e-5) * its.abs().max()
        )
