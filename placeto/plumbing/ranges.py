"""Ranges of settings: the type of a setting says which numbers it may have."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field


def within(low: float, high: float) -> Any:
    """Annotate a number that may have values from `low` to `high`, both included.

    >>> class Settings:
    ...     layers: Annotated[int, within(0, 100)] = 2
    """
    return Field(ge=low, le=high)


Count = Annotated[int, within(1, 10**9)]
Depth = Annotated[int, within(0, 100)]
Width = Annotated[int, within(1, 65_536)]
Limit = Annotated[int, within(0, 10**18)]
Share = Annotated[float, within(0.0, 1.0)]
Weight = Annotated[float, within(0.0, 1e6)]
Temperature = Annotated[float, within(1e-6, 1e6)]
