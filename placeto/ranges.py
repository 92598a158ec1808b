"""Ranges of settings: the type of a setting says which numbers it may have."""

from __future__ import annotations

from typing import Annotated, NamedTuple


class Range(NamedTuple):
    """The smallest and the largest value that a setting may have; both are allowed.

    >>> class Settings:
    ...     layers: Annotated[int, Range(0, 100)] = 2
    """

    low: float
    high: float


Count = Annotated[int, Range(1, 1e9)]
Depth = Annotated[int, Range(0, 100)]
Width = Annotated[int, Range(1, 65_536)]
Limit = Annotated[int, Range(0, 1e18)]
Share = Annotated[float, Range(0.0, 1.0)]
Weight = Annotated[float, Range(0.0, 1e6)]
Temperature = Annotated[float, Range(1e-6, 1e6)]
