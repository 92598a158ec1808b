"""Attention of a CPU on GPUs: which calls, and the same shapes; on a GPU, the same numbers."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.fx import Node
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from placeto.runtime import attention
from placeto.runtime.attention import gpu_attention
from placeto.runtime.program import Program
from placeto.runtime.real_steps import real_training


class Attends(nn.Module):
    def __init__(self, width: int, heads: int, causal: bool, mask: Tensor | None) -> None:
        super().__init__()
        self.heads, self.causal, self.qkv = heads, causal, nn.Linear(width, 3 * width)
        self.register_buffer("mask", mask)

    def forward(self, x: Tensor) -> Tensor:
        b, t, w = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, w // self.heads).permute(2, 0, 3, 1, 4).unbind()
        return functional.scaled_dot_product_attention(q, k, v, self.mask, is_causal=self.causal)


class Encodes(nn.Module):
    """By torch's own layer: the positions come first in memory, and the output is viewed."""

    def __init__(self, width: int, heads: int, *_: Any) -> None:
        super().__init__()
        self.layer = nn.MultiheadAttention(width, heads, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x, x, x, need_weights=False)[0]


def like(value: Any) -> Any:
    """What a node stands for, without its numbers."""
    if not isinstance(value, Node):
        return value
    found = value.meta["val"]
    return torch.empty_strided(found.shape, found.stride(), dtype=found.dtype, device="meta")


def called(node: Node) -> Any:
    """What the call of a GPU makes of tensors without numbers."""
    function: Any = gpu_attention(node)
    return function(*map(like, node.args), **{key: like(value) for key, value in node.kwargs.items()})


def program_of(
    width: int = 32,
    length: int = 50,
    causal: bool = True,
    mask: Tensor | None = None,
    kind: type[nn.Module] = Attends,
    **options: Any,
) -> tuple[Program, list[Any], Any]:
    torch.manual_seed(0)
    dtype = options.get("dtype", torch.float32)
    module, x = kind(width, 4, causal, mask).to(dtype), torch.randn(2, length, width, dtype=dtype)
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


@pytest.mark.parametrize(
    "options", [{}, {"causal": False, "mask": torch.zeros(1, 50)}, {"kind": Encodes}], ids=["causal", "masked", "layer"]
)
def test_shapes_and_strides_are_those_of_the_call(options: Any) -> None:
    program, _, _ = program_of(**options)
    assert len(calls(program)) == 2
    for node in calls(program):
        for mine, its in zip(called(node), node.meta["val"], strict=True):
            assert mine.shape == its.shape
            assert mine.dtype == its.dtype
            assert mine.dim() < 4 or mine.stride() == its.stride()


class Seen(TorchDispatchMode):
    """Strides of the output and the logsumexp that the kernel's backward pass is given."""

    def __init__(self) -> None:
        super().__init__()
        self.outputs: list[tuple[int, ...]] = []
        self.strides: list[tuple[int, ...]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._scaled_dot_product_efficient_attention_backward.default:
            self.outputs.append(args[5].stride())
            self.strides.append(args[6].stride())
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("length", [64, 50])
def test_rows_of_a_logsumexp_that_a_core_made_are_aligned(length: int) -> None:
    """The kernel refuses heads that don't begin at multiples of 8 numbers; a core puts them side by side."""
    program, _, _ = program_of(length=length)
    forward, backward = calls(program)
    assert forward.meta["val"][1].stride() == (4 * length, 1, 4)
    with Seen() as seen:
        called(backward)
    assert seen.strides == [(4 * 64, 64, 1)]


def test_the_backward_pass_gets_an_output_whose_heads_are_side_by_side() -> None:
    """In 16 bits the kernel takes no strides of it, and `Encodes` puts the positions first."""
    program, _, _ = program_of(length=50, kind=Encodes)
    _, backward = calls(program)
    assert backward.args[4].meta["val"].stride() == (32, 8, 64, 1)  # type: ignore[union-attr]
    with Seen() as seen:
        called(backward)
    assert seen.outputs == [(50 * 32, 8, 32, 1)]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize(
    "options",
    [
        {"length": 64},
        {"kind": Encodes},
        {"kind": Encodes, "dtype": torch.bfloat16},
        {"kind": Encodes, "dtype": torch.float16},
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
            mine.cpu(), its, rtol=0, atol=(1e-5 if its.dtype == torch.float32 else 0.02) * its.abs().max()
        )


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("length", [64, 50])
@pytest.mark.parametrize("devices", [("cpu", "cuda:0"), ("cuda:0", "cpu")])
def test_passes_on_two_devices(length: int, devices: tuple[str, str], dtype: torch.dtype) -> None:
    program, _, _ = program_of(length=length, dtype=dtype)
    forward, backward = calls(program)
    query, key, value, gradient = (torch.randn(2, length, 4, 8, dtype=dtype).transpose(1, 2) for _ in range(4))

    def gradients(first: str, last: str) -> tuple[Tensor, ...]:
        """Of a forward pass on one device, and a backward pass on another."""
        passes: Any = [
            node.target if at == "cpu" else gpu_attention(node)
            for node, at in zip((forward, backward), (first, last), strict=True)
        ]
        made = passes[0](*(one.to(first) for one in (query, key, value)), *forward.args[3:], **forward.kwargs)
        given = (one.to(last) for one in (gradient, query, key, value, *made))
        return tuple(one.cpu() for one in passes[1](*given, *backward.args[6:], **backward.kwargs))

    for mine, its in zip(gradients(*devices), gradients("cpu", "cpu"), strict=True):
        assert torch.allclose(
            mine, its, rtol=0, atol=(1e-5 if dtype == torch.float32 else 0.02) * float(its.abs().max())
        )


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize(("queries", "keys"), [(50, 50), (50, 70), (70, 50)])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("width", [8, 64, 192, 200])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_either_kernel_of_16_bits(queries: int, keys: int, causal: bool, width: int, dtype: torch.dtype) -> None:
    """Lengths and widths that FlashAttention takes and others, with the positions first in memory."""
    query, gradient = (torch.randn(queries, 2, 4, width, dtype=dtype).permute(1, 2, 0, 3) for _ in range(2))
    key, value = (torch.randn(keys, 2, 4, width, dtype=dtype).permute(1, 2, 0, 3) for _ in range(2))

    def results(at: str) -> list[Tensor]:
        given = [one.to(at) for one in (query, key, value, gradient)]
        if at == "cpu":
            aten = torch.ops.aten
            output, sums = aten._scaled_dot_product_flash_attention_for_cpu(*given[:3], 0.0, causal)
            last: Any = aten._scaled_dot_product_flash_attention_for_cpu_backward
        else:
            output, sums = attention._forward(query.stride(), *given[:3], 0.0, causal)
            last = attention._backward
        return [one.cpu().float() for one in (output, *last(given[3], *given[:3], output, sums, 0.0, causal))]

    for mine, its in zip(results("cuda:0"), results("cpu"), strict=True):
        assert torch.allclose(mine, its, rtol=0, atol=0.02 * float(its.abs().max()))
