"""Random numbers of one-shot policies, alike for one process and for several that share the samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class SharedGenerator:
    """A generator that all ranks have alike: it draws for all rows, and this rank keeps its own."""

    generator: torch.Generator
    rows: slice  # this rank's
    total: int  # rows of all ranks


Randomness = torch.Generator | SharedGenerator


def uniform(shape: Sequence[int], generator: Randomness, like: Tensor) -> Tensor:
    """Uniform random numbers in 0..1, of the device and type of `like`; of a shared generator this rank's rows."""
    if isinstance(generator, SharedGenerator):
        return uniform((generator.total, *shape[1:]), generator.generator, like)[generator.rows]
    return torch.rand(tuple(shape), generator=generator, device=like.device, dtype=like.dtype)
