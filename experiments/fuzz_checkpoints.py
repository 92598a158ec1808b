"""Checkpoints of torch for `experiments.fuzz`, and the tensors of other kinds that are put into them."""

from __future__ import annotations

import warnings
from io import BytesIO
from typing import Any

import torch


def checkpoint(state: Any) -> bytes:
    """A file of `torch.save`."""
    buffer = BytesIO()
    torch.save(state, buffer)
    return buffer.getvalue()


def odd_tensors() -> list[torch.Tensor]:
    """Tensors of kinds that no checkpoint has."""
    plain = torch.ones(4, 4)
    with warnings.catch_warnings(action="ignore"):  # some kinds are experimental
        nested = torch.nested.nested_tensor([plain, plain[:2]])
        compressed = plain.to_sparse_csr()
    dtypes = torch.float8_e4m3fn, torch.bfloat16, torch.complex64, torch.bool, torch.int8
    others = plain.to("meta"), plain.to_sparse(), plain.requires_grad_(), torch.full((4, 4), torch.nan), torch.ones(0)
    return [*(plain.detach().to(dtype) for dtype in dtypes), nested, compressed, *others, torch.ones(1).expand(9, 9)]
