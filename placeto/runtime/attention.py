"""Runs attention that was captured on a CPU by the kernels that GPUs have.

Captured on a CPU, `scaled_dot_product_attention` is an op that only CPUs have. Two kernels of GPUs take the same
tensors and make the same ones: the memory-efficient one (Rabe and Staats, "Self-attention does not need O(n^2) memory",
2021, arXiv 2112.05682), and the faster FlashAttention (Dao, "FlashAttention-2", 2023, arXiv 2307.08691), which takes
16 bits and no masks. They lay tensors out in other ways, so outputs are brought into the layout of the capture, because
later calls may view them. The backward pass of each of the three kernels takes the logsumexp of any of them.

Legend: B batch, H heads, L queries, S keys, W width of a head.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node
from torch.nn import functional

aten = torch.ops.aten
_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
_WIDTH = 8  # must divide the width of a head, so that heads are aligned in memory
_ROWS = 32  # must divide the number of rows of the logsumexp that a kernel reads
_ALIGNED = 16  # rows of a mask begin at multiples of so many numbers
_FLASH_WIDTH = 192  # wider heads have no backward pass by FlashAttention on some GPUs
_FLASH_CAPABILITY = (8, 0)  # the least that a GPU must have for FlashAttention


def gpu_attention(node: Node) -> Callable[..., Any] | None:
    """Return a function that computes a call of the CPU's attention, forward or backward, on a GPU.

    Return None for other calls, and for tensors that the kernel doesn't take: doubles, heads of a width that 8 doesn't
    divide, and masks of another dtype than the queries.
    """
    backward = node.target is aten._scaled_dot_product_flash_attention_for_cpu_backward.default
    if not backward and node.target is not aten._scaled_dot_product_flash_attention_for_cpu.default:
        return None
    query, mask = node.args[int(backward)].meta["val"], node.kwargs.get("attn_mask")  # type: ignore[union-attr]
    if query.dtype not in _DTYPES or query.shape[-1] % _WIDTH:
        return None
    if isinstance(mask, Node) and mask.meta["val"].dtype != query.dtype:
        return None
    if backward:
        return _backward
    return partial(_forward, node.meta["val"][0].stride())


def _forward(
    strides: tuple[int, ...],
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Return output (B, H, L, W) and logsumexp (B, H, L) of queries (B, H, L, W), keys and values (B, H, S, W).

    The output has the given strides.
    """
    if _takes_flash(query, key, is_causal, attn_mask):
        results = aten._scaled_dot_product_flash_attention(query, key, value, dropout_p, is_causal, False, scale=scale)
    else:
        mask = _aligned(attn_mask, query, key)
        results = aten._scaled_dot_product_efficient_attention(
            query, key, value, mask, True, dropout_p, is_causal, scale=scale
        )
    output = results[0]
    if output.stride() != strides:
        output = torch.empty_strided(output.shape, strides, dtype=output.dtype, device=output.device).copy_(output)
    return output, results[1][..., : query.shape[-2]]


def _backward(
    gradient: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    output: Tensor,
    logsumexp: Tensor,
    dropout_p: float,
    is_causal: bool,
    *,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of queries, keys and values.

    In 16 bits the memory-efficient kernel reads the output as if it were laid out like (B, L, H, W), whatever its
    strides are.
    """
    seed = torch.zeros((), dtype=torch.int64, device=query.device)  # of dropout, which the CPU's attention lacks
    if _takes_flash(query, key, is_causal, attn_mask):
        lengths = None, None, query.shape[-2], key.shape[-2]
        gradients = aten._scaled_dot_product_flash_attention_backward(
            gradient,
            query,
            key,
            value,
            output,
            logsumexp.contiguous(),
            *lengths,
            dropout_p,
            is_causal,
            seed,
            seed,
            scale=scale,
        )
        return gradients[0], gradients[1], gradients[2]
    output = output.transpose(1, 2).contiguous().transpose(1, 2)
    rows = functional.pad(logsumexp, (0, -logsumexp.shape[-1] % _ROWS), value=float("inf")).contiguous()
    mask, wanted = _aligned(attn_mask, query, key), [True, True, True, False]
    gradients = aten._scaled_dot_product_efficient_attention_backward(
        gradient, query, key, value, mask, output, rows, seed, seed, dropout_p, wanted, is_causal, scale=scale
    )
    return gradients[0], gradients[1], gradients[2]


def _takes_flash(query: Tensor, key: Tensor, is_causal: bool, mask: Tensor | None) -> bool:
    """Whether FlashAttention is there and computes the same as the CPU.

    It aligns a causal mask with the last key, and the CPU with the first one.
    """
    return (
        query.dtype != torch.float32
        and mask is None
        and query.shape[-1] <= _FLASH_WIDTH
        and (not is_causal or query.shape[-2] == key.shape[-2])
        and query.device.type == "cuda"
        and torch.version.cuda is not None
        and torch.backends.cuda.is_flash_attention_available()
        and torch.cuda.get_device_capability(query.device) >= _FLASH_CAPABILITY
    )


def _aligned(mask: Tensor | None, query: Tensor, key: Tensor) -> Tensor | None:
    """Return a mask that broadcasts to (B, H, L, S) as one of that shape with aligned rows; None without a mask."""
    if mask is None:
        return None
    keys = key.shape[-2]
    mask = mask.expand(*mask.shape[:-1], keys)
    mask = functional.pad(mask, (0, -keys % _ALIGNED)).contiguous()[..., :keys]
    return mask.expand(*query.shape[:-1], keys)
