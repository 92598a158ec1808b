"""Trace a module as a GPU's autocast would run it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

from placeto.capture.tracing.checkpoints import recomputing_within
from placeto.capture.tracing.meanwhile import meanwhile
from placeto.problem.dtypes import PRECISIONS

_HALVES = torch.bfloat16, torch.float16
# torch's documentation of "CUDA ops that autocast to float32"; a CPU's autocast leaves most of them in 16 bits
_IN_32_BITS = {
    "__pow__",
    "__rdiv__",
    "__rpow__",
    "__rtruediv__",
    "acos",
    "asin",
    "binary_cross_entropy_with_logits",
    "cdist",
    "cosh",
    "cosine_embedding_loss",
    "cosine_similarity",
    "cross_entropy",
    "cumprod",
    "cumsum",
    "dist",
    "erfinv",
    "exp",
    "expm1",
    "group_norm",
    "hinge_embedding_loss",
    "kl_div",
    "l1_loss",
    "layer_norm",
    "log",
    "log10",
    "log1p",
    "log2",
    "log_softmax",
    "margin_ranking_loss",
    "mse_loss",
    "multi_margin_loss",
    "multilabel_margin_loss",
    "nll_loss",
    "norm",
    "normalize",
    "pdist",
    "poisson_nll_loss",
    "pow",
    "prod",
    "reciprocal",
    "renorm",
    "rsqrt",
    "sinh",
    "smooth_l1_loss",
    "soft_margin_loss",
    "softmax",
    "softmin",
    "softplus",
    "sum",
    "tan",
    "triplet_margin_loss",
}


@contextmanager
def autocast(precision: str) -> Iterator[None]:
    """A context in which ops compute as under a GPU's autocast if the precision is "bf16" or "fp16", else unchanged.

    A module that enters a GPU's autocast by itself, as by `torch.autocast("cuda")`, computes as under that, too.
    """
    dtype = getattr(torch, PRECISIONS[precision]) if precision in ("bf16", "fp16") else None
    with _on_a_gpu(), torch.autocast("cuda", dtype=dtype) if dtype else nullcontext():
        yield


@contextmanager
def _on_a_gpu() -> Iterator[None]:
    """While this is open, `torch.autocast("cuda")` casts on the CPU as on a GPU, also where checkpoints recompute."""
    begin, enter, leave = torch.autocast.__init__, torch.autocast.__enter__, torch.autocast.__exit__
    opened = list[ExitStack]()

    def on_the_cpu(cast: Any, device_type: str, dtype: torch.dtype | None = None, *how: Any, **named: Any) -> None:
        usual = torch.get_autocast_dtype("cpu" if device_type == "cpu" else "cuda")
        begin(cast, "cpu", dtype or usual, *how, **named)
        cast.as_on_a_gpu = device_type != "cpu"

    def enter_as_on_a_gpu(cast: Any) -> Any:
        enter(cast)
        opened.append(ExitStack())
        if getattr(cast, "as_on_a_gpu", False) and torch.is_autocast_enabled("cpu"):
            opened[-1].enter_context(_as_on_a_gpu())
        return cast

    def leave_it(cast: Any, *error: Any) -> Any:
        opened.pop().close()
        return leave(cast, *error)

    with (
        patch.object(torch.autocast, "__init__", on_the_cpu),
        patch.object(torch.autocast, "__enter__", enter_as_on_a_gpu),
        patch.object(torch.autocast, "__exit__", leave_it),
        recomputing_within(_on_a_gpu),
    ):
        yield


@contextmanager
def _as_on_a_gpu() -> Iterator[None]:
    """A context in which a CPU's autocast casts as a GPU's does, also when checkpoints of this context recompute."""
    with _In32Bits(), _attention_in_16_bits(), recomputing_within(_as_on_a_gpu):
        yield


def _attention_in_16_bits() -> AbstractContextManager[None]:
    """A context in which attention without a kernel of its own multiplies in 16 bits, as GPUs do, and not in 32 bits.

    torch writes attention out as several ops if it has dropout, or a mask.
    """
    before = torch.backends.cuda.fp16_bf16_reduction_math_sdp_allowed()
    return meanwhile(torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp, True, before)


class _In32Bits(TorchFunctionMode):
    """While this mode is open and autocast is on, functions of `_IN_32_BITS` get their 16-bit tensors in 32 bits."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if getattr(func, "__name__", "") in _IN_32_BITS and torch.is_autocast_enabled("cpu"):
            args, kwargs = tree_map(_widened, (args, kwargs))
        return func(*args, **(kwargs or {}))


def _widened(value: Any) -> Any:
    return value.float() if isinstance(value, Tensor) and value.dtype in _HALVES else value
