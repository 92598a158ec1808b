"""Names of a package that are imported when first used, so that importing the package is quick."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from typing import Any


def lazily(
    space: dict[str, Any], names: Mapping[str, Iterable[str]]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return ``__getattr__`` and ``__dir__`` for a package (PEP 562), which import its names when first used.

    Args:
        space: the package's ``globals()``.
        names: a module below the package -> the names that it has.
    """
    modules = {name: module for module, those in names.items() for name in those}

    def get(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {space['__name__']!r} has no attribute {name!r}")
        space[name] = getattr(import_module(f"{space['__name__']}.{modules[name]}"), name)
        return space[name]

    return get, lambda: sorted({*space, *modules})
