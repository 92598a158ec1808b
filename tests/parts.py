"""What modules of tests need in many files: their parts, and layers one after the other."""

from collections.abc import Iterable
from typing import Any

from torch import Tensor, nn


class Parts(nn.Module):
    """A module with what it is given under these names: modules, parameters, other values."""

    def __init__(self, **parts: Any) -> None:
        super().__init__()
        for name, part in parts.items():
            setattr(self, name, part)


def through(layers: Iterable[nn.Module], x: Tensor) -> Tensor:
    """The output of layers one after the other."""
    for layer in layers:
        x = layer(x)
    return x
