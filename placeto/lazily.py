"""Names of a package that are imported when first used, so that importing the package is quick."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazily(space: dict[str, Any], modules: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return ``__getattr__`` and ``__dir__`` for a package (PEP 562), which import its names when first used.

    Args:
        space: the package's ``globals()``.
        modules: name -> the module below the package that has this name.
    """

    def get(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {space['__name__']!r} has no attribute {name!r}")
        space[name] = getattr(import_module(f"{space['__name__']}.{modules[name]}"), name)
        return space[name]

    return get, lambda: sorted({*space, *modules})
