"""Ranks: several processes that train one policy. Each runs its share of the episodes, and the gradients are summed.

All ranks draw the same random numbers for the episodes of all ranks, and use those of their own episodes. So with W
ranks an iteration is the same as with one, but for the rounding of sums. A single process has no process group, and
nothing here takes any time then.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import nn

from placeto.errors import TrainingError

T = TypeVar("T")
TIMEOUT = timedelta(minutes=30)  # longest wait for the other ranks; a rank that ended is noticed at once


@dataclass(frozen=True)
class Ranks:
    """This process among those that train together. A context manager that ends the process group, if it began it.

    >>> Ranks(rank=1, size=3).share(10)
    slice(3, 6, None)
    """

    rank: int = 0
    size: int = 1
    opened: bool = False  # whether `from_environment` began the process group, so that it must be ended

    @classmethod
    def from_environment(cls, device: str = "cpu") -> Ranks:
        """Join the ranks that ``torchrun`` started, by gloo, and on GPUs by nccl; without torchrun there is one rank.

        If the process has a process group already, return its ranks.

        Args:
            device: torch device on which the policy computes. With "cuda" each rank takes the GPU of its local number.

        Raises:
            TrainingError: the other ranks can't be reached, or there are fewer GPUs than ranks.
        """
        if dist.is_available() and dist.is_initialized():
            return cls(dist.get_rank(), dist.get_world_size())
        size = int(os.environ.get("WORLD_SIZE", "1"))
        if size == 1:
            return cls()
        backend = "gloo"
        if device.startswith("cuda"):
            local, gpus = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
            if device != "cuda" or local >= gpus:
                raise TrainingError(f"{size} ranks with --device {device}, {gpus} GPUs here: "
                                 "give --device cuda, and start at most one rank for each GPU")  # fmt: skip
            torch.cuda.set_device(local)
            backend = "cpu:gloo,cuda:nccl"
        try:
            dist.init_process_group(backend, timeout=TIMEOUT)
        except (RuntimeError, ValueError) as problem:
            raise TrainingError(
                f"can't join the {size} ranks ({_brief(problem)}); start them with torchrun"
            ) from problem
        return cls(dist.get_rank(), size, opened=True)

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, *details: object) -> None:
        if self.opened:
            dist.destroy_process_group()

    @property
    def first(self) -> bool:
        """Whether this is the rank that logs, validates and saves."""
        return self.rank == 0

    def share(self, count: int) -> slice:
        """Return the rows of this rank, of `count` rows in all. Two ranks' numbers of rows differ by 1 at most."""
        return slice(count * self.rank // self.size, count * (self.rank + 1) // self.size)

    def share_of_blocks(self, blocks: int, rows: int) -> list[tuple[int, slice]]:
        """Return the rows of this rank in blocks of `rows` rows each: numbers of blocks, with the rows in each block.

        The share is that of all rows of all blocks. Blocks without rows of this rank are left out.

        >>> Ranks(rank=0, size=2).share_of_blocks(3, 4)
        [(0, slice(0, 4, None)), (1, slice(0, 2, None))]
        """
        mine = self.share(blocks * rows)
        parts = ((b, max(mine.start - b * rows, 0), min(mine.stop - b * rows, rows)) for b in range(blocks))
        return [(b, slice(start, stop)) for b, start, stop in parts if start < stop]

    def gather(self, value: T) -> list[T]:
        """Return the values of all ranks, in the order of the ranks. Each rank passes its own value."""
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        with self._together():
            dist.all_gather_object(values, value)
        return values

    def of_first(self, value: T) -> T:
        """Return the value that the first rank passes."""
        if self.size == 1:
            return value
        values = [value]
        with self._together():
            dist.broadcast_object_list(values, src=0)
        return values[0]

    def made_by_first(self, make: Callable[[], T]) -> T:
        """Call `make` on the first rank alone, and return its result on all ranks; the others wait for it."""
        made: Any = make() if self.first else None
        return self.of_first(made)

    def first_then_others(self, make: Callable[[], T]) -> T:
        """Call `make` on each rank and return its result, first on the first rank, so that others find its caches."""
        made: Any = make() if self.first else None
        self.any(False)
        return made if self.first else make()

    def sum(self, numbers: Sequence[float]) -> list[float]:
        """Return the sum over the ranks of each of the numbers."""
        if self.size == 1:
            return list(numbers)
        values = torch.tensor(numbers, dtype=torch.float64)
        with self._together():
            dist.all_reduce(values)
        return values.tolist()

    def any(self, flag: bool) -> bool:
        """Return whether the flag is true on any rank."""
        return bool(self.sum([float(flag)])[0])

    def weight(self, count: int) -> float:
        """Return this rank's share of the rows of all ranks: the weight of its mean in the mean of all rows."""
        return count / self.sum([count])[0]

    def sum_gradients(self, module: nn.Module) -> None:
        """Replace gradients by their sum over the ranks. A parameter without a gradient on any rank still has none."""
        if self.size == 1:
            return
        parameters = [p for p in module.parameters() if p.requires_grad]
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
        there = grads[0].new_tensor([float(p.grad is not None) for p in parameters])
        flat = torch.cat([*(grad.flatten() for grad in grads), there])
        with self._together():
            dist.all_reduce(flat)
        *summed, there = flat.split([*(grad.numel() for grad in grads), len(grads)])
        for parameter, grad, known in zip(parameters, summed, there.tolist(), strict=True):
            parameter.grad = grad.view_as(parameter) if known else None

    @contextmanager
    def _together(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as problem:
            raise TrainingError(
                f"rank {self.rank} of {self.size} lost the others ({_brief(problem)}); the rank that ended says why"
            ) from problem


ALONE = Ranks()
"""A single process."""


def _brief(problem: Exception) -> str:
    """Return the first sentence of torch's message, up to 160 characters, without the place in torch's source."""
    message = re.sub(r"^\s*\[[^]]*\]\s*", "", str(problem)) or type(problem).__name__
    return re.split(r"\. |\n", message)[0][:160]
