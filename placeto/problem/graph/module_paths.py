"""Paths of modules, such as ``encoder.layers.3``: which module is inside which."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import accumulate

LOSS = "loss"
"""Module path of the ops of a loss function, which is no module."""


def inside(path: str, module: str) -> bool:
    """Whether a path is that of `module`, or of a module inside it."""
    return path == module or path.startswith(f"{module}.")


def around(path: str) -> list[str]:
    """Return the paths of the modules around a module, the outermost first, then its own; none for the model itself.

    >>> around("a.b.c")
    ['a', 'a.b', 'a.b.c']
    """
    return list(accumulate(path.split("."), "{}.{}".format)) if path else []


def holders(paths: Iterable[str]) -> set[str]:
    """Return the paths of all modules that contain one of `paths`, at any depth.

    >>> sorted(holders(["a.b.c", "a.d", "e"]))
    ['a', 'a.b']
    """
    return {module for path in paths for module in around(path)[:-1]}


def unit_of(path: str, whole: Iterable[str] = ()) -> str:
    """Return the unit to which a module belongs: a block of the model, or a module beside the blocks.

    A unit is the shortest prefix of a path that ends in a number, as ``encoder.layers.3``, or the whole path where
    there is none.

    Args:
        path: the path of the module.
        whole: paths of modules that are to stay whole: each is a unit, unless it is part of one.

    >>> unit_of("encoder.layers.3.linear1"), unit_of("head.norm"), unit_of("head.norm", ["head"])
    ('encoder.layers.3', 'head.norm', 'head')
    """
    kept = [module for module in whole if inside(path, module)]
    kept += [module for module in around(path) if module.rpartition(".")[2].isdigit()][:1]
    return min(kept, key=len, default=path)
