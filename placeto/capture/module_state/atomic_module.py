"""A module with the function that calls it, as one module whose tensors can be swapped while it is traced."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from threading import get_ident
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn

from placeto.capture.module_state.attributes import named
from placeto.errors import CaptureError


class Whole(nn.Module):
    """A module that runs a function which calls another module.

    If the module assigns a new tensor to a buffer while the function runs, its values are copied into the old buffer.

    Args:
        module: the module that the function calls.
        function: takes arguments and targets; returns tensors and None.
        others: further modules that the function reads, by name.
        name: the name of the graph, for messages.
    """

    def __init__(
        self,
        module: nn.Module,
        function: Callable[[Any, Any], list[Tensor | None]],
        others: Mapping[str, nn.Module],
        name: str,
    ) -> None:
        super().__init__()
        self.module = module
        for key, part in others.items():
            self.add_module(key, part)
        self.function = function
        self.title = name

    def forward(self, arguments: Any, extra: Any) -> list[Tensor | None]:
        """Run the function and return what it returns.

        Raises:
            CaptureError: a parameter is assigned; or a tensor that is assigned to a buffer, or to the ``.data`` of
                another, has another shape or dtype; or only one of two modules that share a buffer assigns it.
        """
        parts = dict(self.named_modules())
        saved = {path: dict(part._buffers) for path, part in parts.items()}
        owned = {path: dict(part._parameters) for path, part in parts.items()}
        with _in_place(self.title):
            outputs = self.function(arguments, extra)
        for path, part in parts.items():
            self._check_parameters(path, part, owned[path])
        buffers = [(path, parts[path], name, buffer) for path, old in saved.items() for name, buffer in old.items()]
        return self._keep(buffers, outputs)

    def _keep(
        self, buffers: list[tuple[str, nn.Module, str, Tensor | None]], outputs: list[Tensor | None]
    ) -> list[Tensor | None]:
        """Copy tensors that were assigned to buffers into the old buffers; return the outputs without this change."""
        copies: list[tuple[Tensor, Tensor]] = []
        done: set[int] = set()
        for path, part, name, buffer in buffers:
            new = part._buffers.get(name, getattr(part, name, None))
            if new is buffer or (buffer is not None and id(buffer) in done):
                continue
            if buffer is None or not isinstance(new, Tensor) or not _alike(new, buffer):
                was = "None" if buffer is None else _layout(buffer)
                became = _layout(new) if isinstance(new, Tensor) else "no tensor"
                where = named(path, part)
                raise CaptureError(
                    f"{self.title}: {where} assigns its buffer {name!r} anew, which was {was}, as {became}: "
                    "give it its last shape and dtype before, as a step keeps both"
                )
            for owner, module, key, shared in buffers:
                if shared is buffer and module._buffers.get(key, getattr(module, key, None)) is not new:
                    raise CaptureError(
                        f"{self.title}: {named(path, part)} assigns its buffer {name!r} anew, which "
                        f"{named(owner, module)} shares as {key!r} and keeps: change it in place, by copy_, or give "
                        "each its own"
                    )
            done.add(id(buffer))
            copies.append((buffer, new))
        storages = {buffer.untyped_storage()._cdata for buffer, _ in copies}
        outputs = [
            output.clone() if isinstance(output, Tensor) and output.untyped_storage()._cdata in storages else output
            for output in outputs
        ]
        with torch.no_grad():
            values = [new.detach().clone() for _, new in copies]
            for (buffer, _), value in zip(copies, values, strict=True):
                buffer.copy_(value)
        return outputs

    def _check_parameters(self, path: str, part: nn.Module, owned: Mapping[str, Any]) -> None:
        for name, parameter in part._parameters.items():
            if name not in owned or parameter is not owned[name]:
                how = "anew" if name in owned else "for the first time"
                raise CaptureError(
                    f"{self.title}: {named(path, part)} assigns its parameter {name!r} {how} in forward: "
                    "assign it before, and change it by parameter.data.copy_(...)"
                )


def _in_place(title: str) -> AbstractContextManager[Any]:
    """A context in which ``tensor.data = value`` copies the value into the tensor, an op that can be recorded.

    In torch, the tensor would get other memory. The context holds for this thread only. A `TorchFunctionMode` could do
    the same, but while one is open torch doesn't use its fused attention.
    """
    thread, plain = get_ident(), torch._C.TensorBase.data

    def put(tensor: Tensor, value: Any) -> None:
        if get_ident() != thread:
            plain.__set__(tensor, value)  # type: ignore[attr-defined]
            return
        if not _alike(value, tensor):
            raise CaptureError(
                f"{title}: .data of {_layout(tensor)} is assigned {_layout(value)}: keep shape and dtype"
            )
        with torch.no_grad():
            plain.__get__(tensor).copy_(value)  # type: ignore[attr-defined]

    return patch.object(Tensor, "data", property(plain.__get__, put))  # type: ignore[attr-defined]


def _alike(new: Any, old: Tensor) -> bool:
    return isinstance(new, Tensor) and new.shape == old.shape and new.dtype == old.dtype


def _layout(tensor: Tensor) -> str:
    return f"a tensor {tuple(tensor.shape)} of {str(tensor.dtype).removeprefix('torch.')}"


@contextmanager
def with_tensors(module: nn.Module, tensors: Mapping[str, Tensor]) -> Iterator[None]:
    """A context in which a module has other tensors in place of its own parameters and buffers.

    Names of parameters and buffers that are added or deleted meanwhile stay so. `torch.func.functional_call` would lose
    the tensors of a submodule that has two names.

    Args:
        module: the module.
        tensors: path of each parameter and buffer -> what stands for it.
    """
    own = {id(tensor): tensors[path] for path, tensor in (*module.named_parameters(), *module.named_buffers())}
    holders: list[Any] = [holder for part in module.modules() for holder in (part._parameters, part._buffers)]
    before = [{key: tensor for key, tensor in holder.items() if tensor is not None} for holder in holders]
    for holder, held in zip(holders, before, strict=True):
        holder.update({key: own[id(tensor)] for key, tensor in held.items()})
    try:
        yield
    finally:
        for holder, held in zip(holders, before, strict=True):
            holder.update({key: tensor for key, tensor in held.items() if key in holder})
