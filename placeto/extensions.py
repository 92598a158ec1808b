"""What other packages add to Placeto: families, policies and rewards, by entry points.

A package names what it adds in its ``pyproject.toml``, in one of the groups here; docs/extending.md has whole packages.
"""

from __future__ import annotations

import inspect
import sys
import traceback
from collections.abc import Callable, Collection
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
    if point.pattern.match(point.value) is None:
        raise ExtensionError(f"{described(point)}: must be module:name")
    try:
        return point.load()
    except (ImportError, AttributeError) as problem:
        there = (
            getattr(sys.modules.get(point.module), "__file__", None) if isinstance(problem, AttributeError) else None
        )
        other = f"; {point.module} is {there}: if that is another module of this name, rename it" if there else ""
        raise ExtensionError(f"{described(point)} can't be loaded: {problem}{other}") from None
    except (Exception, SystemExit) as problem:  # the package's own
        raise ExtensionError(f"{described(point)} can't be loaded: {raised(problem)}") from None


def takes_one(function: Callable[..., Any]) -> bool:
    """Whether a function, or a class, can be called with one argument; true of built-in ones that don't tell."""
    try:
        inspect.signature(function).bind(None)
    except TypeError:
        return False
    except ValueError:
        return True
    return True


def raised(problem: BaseException) -> str:
    """What a package's code has raised, in words: the error and where."""
    words = f"{type(problem).__name__}: {problem}"
    if isinstance(problem, SyntaxError):  # it names its place
        return words
    place = traceback.extract_tb(problem.__traceback__)[-1]
    return f"{words} ({place.filename}, line {place.lineno})"


def described(point: EntryPoint) -> str:
    """An entry point in words, with its package."""
    package = f" of {point.dist.name}" if point.dist is not None else ""
    return f"entry point {point.name} = {point.value!r} in {point.group}{package}"
