"""Inferences are traced as PyTorch computes them under `torch.no_grad`, but in plain ops."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch.backends import mha

from placeto.capture.tracing.meanwhile import meanwhile


@contextmanager
def without_gradients() -> Iterator[None]:
    """A context in which no gradients are prepared, and in which PyTorch's own attention is plain ops.

    Which ops run may depend on whether gradients are needed. PyTorch writes attention out, for instance, if the mask
    needs one, as that of T5 does. `nn.MultiheadAttention` is one op without gradients, of which only its result could
    be placed or counted.
    """
    plain = meanwhile(mha.set_fastpath_enabled, False, mha.get_fastpath_enabled())
    with torch.no_grad(), plain:
        yield
