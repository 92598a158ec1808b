"""Layers that have their batch in dimension 1: micro-batches split dimension 0, which must not be their sequence."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import Tensor, nn

from placeto.capture.errors import CaptureError

Lengths = list[tuple[str, int]]
"""For each call of a layer, its path and the length of the sequence that it is given."""


def sequence_first(module: nn.Module) -> dict[str, nn.Module]:
    """Recurrent layers and attention that were made without ``batch_first``, by path."""
    layers = {
        path: part for path, part in module.named_modules() if isinstance(part, nn.RNNBase | nn.MultiheadAttention)
    }
    return {path: part for path, part in layers.items() if not part.batch_first}


def check_sequences(
    layers: Mapping[str, nn.Module], whole: Callable[[], Any], part: Callable[[], Any], name: str
) -> None:
    """Refuse to split a batch if this makes a layer's sequence shorter.

    Args:
        layers: layers by path, as `sequence_first` returns them.
        whole: calls the module on the whole batch.
        part: calls the module on a micro-batch.
        name: the name of the graph, for messages.

    Raises:
        CaptureError: a sequence becomes shorter.
    """
    found: list[Lengths] = []
    for call in (whole, part):
        with _lengths(layers) as lengths:
            call()
        found.append(lengths)
    for (path, length), (other, shorter) in zip(*found, strict=False):
        if path == other and shorter < length:
            layer = f"module {path!r} ({type(layers[path]).__name__})" if path else "the module"
            raise CaptureError(
                f"{name}: {layer} has its batch in dimension 1, and micro-batches split dimension 0, here its sequence "
                f"of {length}: make it with batch_first=True and give the batch first, or use micro_batches=1"
            )


@contextmanager
def _lengths(layers: Mapping[str, nn.Module]) -> Iterator[Lengths]:
    """A context that fills a list with the calls of these layers while it is open."""
    found: Lengths = []

    def noting(path: str) -> Callable[..., None]:
        def hook(module: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
            given = next(iter((*arguments, *named.values())), None)
            if isinstance(given, Tensor):
                found.append((path, len(given)))

        return hook

    with ExitStack() as hooks:
        for path, part in layers.items():
            hooks.enter_context(part.register_forward_pre_hook(noting(path), with_kwargs=True))
        yield found
