"""Random numbers of one-shot policies: the same for one process and for several ranks that divide the samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class SharedGenerator:
    """A generator with the same state on all ranks. Each rank draws the rows of all ranks and keeps its own rows."""

    generator: torch.Generator
    rows: slice  # the rows of this rank
    total: int  # number of rows of all ranks


Randomness = torch.Generator | SharedGenerator


def uniform(shape: Sequence[int], generator: Randomness, like: Tensor) -> Tensor:
    """Draw uniform random numbers in 0..1 of a shape, with the device and type of `like`.

    With a `SharedGenerator`, the rows are those of this rank, and the first number of the shape is ignored.
    """
    if isinstance(generator, SharedGenerator):
        return uniform((generator.total, *shape[1:]), generator.generator, like)[generator.rows]
    return torch.rand(tuple(shape), generator=generator, device=like.device, dtype=like.dtype)
