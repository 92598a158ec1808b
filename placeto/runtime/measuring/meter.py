"""Counts the bytes of the tensors that are alive in a thread, op by op."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Meter(TorchDispatchMode):
    """After every op of this thread, checks which of the storages that ops have read or made still exist.

    Args:
        known: tensors whose storages don't count, such as parameters.
    """

    def __init__(self, known: Iterable[Tensor]) -> None:
        super().__init__()
        self.known = {tensor.untyped_storage()._cdata for tensor in known}
        self.alive: dict[int, tuple[StorageWeakRef, int, int]] = {}  # address -> storage, its number, bytes
        self.count = 0  # of numbers given to storages, whose addresses are used again
        self.moments: list[dict[int, int]] = []  # after each op: number -> bytes

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.alive = {key: entry for key, entry in self.alive.items() if not entry[0].expired()}
        for tensor in tree_leaves((args, result)):
            if isinstance(tensor, Tensor) and tensor.device.type != "meta":
                storage = tensor.untyped_storage()
                if storage._cdata not in self.known and storage._cdata not in self.alive:
                    self.alive[storage._cdata] = (StorageWeakRef(storage), self.count, storage.nbytes())
                    self.count += 1
        self.moments.append({number: size for _, number, size in self.alive.values()})
        return result

    def peak(self, without: Sequence[Tensor] = ()) -> int:
        """Return the most bytes alive after an op, without those of some tensors that are still alive."""
        addresses = {tensor.untyped_storage()._cdata for tensor in without}
        numbers = {self.alive[address][1] for address in addresses if address in self.alive}
        return max(
            (sum(size for number, size in moment.items() if number not in numbers) for moment in self.moments),
            default=0,
        )
