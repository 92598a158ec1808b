"""Counts the bytes of the tensors that are alive while a program runs, op by op."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class _Meter(TorchDispatchMode):
    """Looks after every op which storages are still there."""

    def __init__(self, known: list[Tensor]) -> None:
        super().__init__()
        self.known = {tensor.untyped_storage()._cdata for tensor in known}
        self.alive: dict[int, tuple[StorageWeakRef, int, int]] = {}  # address -> storage, its number, bytes
        self.count = 0  # numbers given, as addresses are used again
        self.moments: list[dict[int, int]] = []  # after each op: number -> bytes

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.alive = {key: entry for key, entry in self.alive.items() if not entry[0].expired()}
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor):
                storage = tensor.untyped_storage()
                if storage._cdata not in self.known and storage._cdata not in self.alive:
                    self.alive[storage._cdata] = (StorageWeakRef(storage), self.count, storage.nbytes())
                    self.count += 1
        self.moments.append({number: size for _, number, size in self.alive.values()})
        return result


def peak_of_training_step(
    module: nn.Module, inputs: list[Tensor], loss: Callable[..., Tensor], targets: list[Tensor]
) -> int:
    """Most bytes of all that one step makes but the gradients of parameters, while it runs on the cpu."""
    kept = [*module.parameters(), *module.buffers(), *inputs, *targets]
    with _Meter(kept) as meter:
        loss(module(*inputs), *targets).backward()
    addresses = [p.grad.untyped_storage()._cdata for p in module.parameters() if p.grad is not None]
    gradients = {meter.alive[address][1] for address in addresses if address in meter.alive}
    return max(sum(size for number, size in moment.items() if number not in gradients) for moment in meter.moments)
