"""Axes with round numbers."""

from __future__ import annotations

import math

from placeto.problem.units import format_us

_TIMES = 8  # numbers on an axis of time, at most


def round_step(size: float) -> float:
    """Return the least number that is 1, 2 or 5 times a power of ten, and no less than `size`.

    >>> round_step(0.3), round_step(50.0), round_step(51.0)
    (0.5, 50.0, 100.0)
    """
    power = 10.0 ** math.floor(math.log10(size))
    return power * next(factor for factor in (1, 2, 5, 10) if factor * power >= size)


def time_marks(end_us: float) -> list[tuple[float, str]]:
    """Return the marks of an axis from 0 to `end_us`: the position of each as a share of the axis, and its text.

    >>> time_marks(2500.0)
    [(0.0, '0 us'), (0.2, '500 us'), (0.4, '1.00 ms'), (0.6, '1.50 ms'), (0.8, '2.00 ms'), (1.0, '2.50 ms')]
    """
    if end_us <= 0.0:
        return []
    step = round_step(end_us / _TIMES)
    return [
        (step * mark / end_us, format_us(step * mark)) for mark in range(math.floor(end_us / step * (1 + 1e-9)) + 1)
    ]
