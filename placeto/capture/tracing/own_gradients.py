"""What makes gradients of its own in a forward pass: functions with a backward pass of theirs, and hooks of tensors.

The trace has what they do. Tools that export the forward pass and differentiate it again leave them out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from torch import Tensor
from torch.autograd import Function

_PLAIN = ("torch._", "torch.utils.checkpoint", "torch.distributed")  # modules whose functions tools know
_NAMES = {"BackwardHookFunction": "a backward hook"}  # of torch's function for it


@contextmanager
def gradients_noted(note: Callable[[str], None]) -> Iterator[None]:
    """A context in which `note` is called with the name of each such function, or kind of hook, when it is used."""
    apply, register_hook = vars(Function)["apply"], Tensor.register_hook

    def noted(function: type[Function], *args: Any, **kwargs: Any) -> Any:
        if not function.__module__.startswith(_PLAIN):
            note(_NAMES.get(function.__name__, function.__qualname__))
        return apply.__func__(function, *args, **kwargs)

    def with_hook(tensor: Tensor, hook: Any) -> Any:
        note("a hook of a tensor")
        return register_hook(tensor, hook)

    functions = patch.object(Function, "apply", classmethod(noted))
    with functions, patch.object(Tensor, "register_hook", with_hook):
        yield
