"""What other packages add to Placeto: families, policies and rewards, by entry points.

A package names what it adds in its ``pyproject.toml``, in one of the groups here; docs/extending.md has whole packages.
"""

from __future__ import annotations

import sys
from collections.abc import Collection
from importlib.metadata import EntryPoint, entry_points
from typing import Any

FAMILIES = "placeto.families"
"""Entry points that name dictionaries of graph families; the names of these entry points don't count."""
POLICIES = "placeto.policies"
"""Entry points that name an `ExternalPolicy` each, which is called as the entry point is."""
REWARDS = "placeto.rewards"
"""Entry points that name a reward of moves each, which is called as the entry point is."""
PLACEMENT_REWARDS = "placeto.placement_rewards"
"""Entry points that name a reward of whole placements each, which is called as the entry point is."""


class ExtensionError(ValueError):
    """What an installed package adds can't be used; the message names the entry point and says why."""


def named_extensions(group: str, taken: Collection[str]) -> dict[str, EntryPoint]:
    """What installed packages add to a group, by name; nothing of it is imported.

    Args:
        group: of entry points.
        taken: names that Placeto uses itself.

    Raises:
        ExtensionError: two of them have the same name, or one has a name of Placeto's.
    """
    found: dict[str, EntryPoint] = {}
    for point in entry_points(group=group):
        if point.name in taken or point.name in found:
            other = f"of {described(found[point.name])}" if point.name in found else "of Placeto itself"
            raise ExtensionError(
                f"{described(point)}: {point.name!r} is a name {other}, too: rename one, or uninstall it"
            )
        found[point.name] = point
    return found


def load_extension(point: EntryPoint) -> Any:
    """What an entry point names.

    Raises:
        ExtensionError: it can't be imported.
    """
    try:
        return point.load()
    except (ImportError, AttributeError) as problem:
        there = (
            getattr(sys.modules.get(point.module), "__file__", None) if isinstance(problem, AttributeError) else None
        )
        other = f"; {point.module} is {there}: if that is another module of this name, rename it" if there else ""
        raise ExtensionError(f"{described(point)} can't be loaded: {problem}{other}") from None


def described(point: EntryPoint) -> str:
    """An entry point in words, with its package."""
    package = f" of {point.dist.name}" if point.dist is not None else ""
    return f"entry point {point.name} = {point.value!r} in {point.group}{package}"
