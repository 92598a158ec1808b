"""What other packages add to Placeto: families, heuristics, policies and rewards, by entry points.

A package names what it adds in its ``pyproject.toml``, in one of the groups here; docs/extending.md has whole packages.
"""

from __future__ import annotations

import inspect
import sys
import traceback
from collections.abc import Callable, Collection
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from placeto.errors import PlacerError

FAMILIES = "placeto.families"
"""Group of entry points that each name a dictionary of graph families; the entry points' own names are ignored."""
PLACERS = "placeto.placers"
"""Group of entry points that each name a heuristic, which is a function; it gets the entry point's name."""
POLICIES = "placeto.policies"
"""Group of entry points that each name an `ExternalPolicy`; the policy gets the entry point's name."""
REWARDS = "placeto.rewards"
"""Group of entry points that each name a reward of moves; the reward gets the entry point's name."""
PLACEMENT_REWARDS = "placeto.placement_rewards"
"""Group of entry points that each name a reward of whole placements; the reward gets the entry point's name."""


def named_extensions(group: str, shipped: Collection[str]) -> dict[str, EntryPoint]:
    """Return the entry points of a group by their names; what they name isn't imported.

    Args:
        group: one of the groups above.
        shipped: names that Placeto uses itself.

    Raises:
        PlacerError: two entry points have the same name, or one has a name in `shipped`.
    """
    points: dict[str, EntryPoint] = {}
    for point in entry_points(group=group):
        if point.name in shipped or point.name in points:
            other = f"of {described(points[point.name])}" if point.name in points else "of Placeto itself"
            raise PlacerError(f"{described(point)}: {point.name!r} is a name {other}, too: rename one, or uninstall it")
        points[point.name] = point
    return points


def load_extension(point: EntryPoint) -> Any:
    """Import what an entry point names, and return it.

    Raises:
        PlacerError: it can't be imported, or the entry point isn't written as module:name.
    """
    if point.pattern.match(point.value) is None:
        raise PlacerError(f"{described(point)}: must be module:name")
    try:
        return point.load()
    except (ImportError, AttributeError) as problem:
        there = (
            getattr(sys.modules.get(point.module), "__file__", None) if isinstance(problem, AttributeError) else None
        )
        other = f"; {point.module} is {there}: if that is another module of this name, rename it" if there else ""
        raise PlacerError(f"{described(point)} can't be loaded: {problem}{other}") from None
    except (Exception, SystemExit) as problem:  # raised by the package's own code
        raise PlacerError(f"{described(point)} can't be loaded: {raised(problem)}") from None


def takes_one(function: Callable[..., Any]) -> bool:
    """Whether a function, or a class, can be called with one argument; True for built-in ones without a signature."""
    try:
        inspect.signature(function).bind(None)
    except TypeError:
        return False
    except ValueError:
        return True
    return True


def raised(problem: BaseException) -> str:
    """Describe an error that a package's code has raised: its type, its message and where it was raised."""
    words = f"{type(problem).__name__}: {problem}"
    if isinstance(problem, SyntaxError):  # its message says where
        return words
    place = traceback.extract_tb(problem.__traceback__)[-1]
    return f"{words} ({place.filename}, line {place.lineno})"


def described(point: EntryPoint) -> str:
    """Describe an entry point, with its package if that is known."""
    package = f" of {point.dist.name}" if point.dist is not None else ""
    return f"entry point {point.name} = {point.value!r} in {point.group}{package}"
