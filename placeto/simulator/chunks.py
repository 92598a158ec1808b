"""How many simulations to make between two looks at the clock."""

from __future__ import annotations

_CHUNK_SECONDS = 0.02  # between two looks at the clock


class Chunks:
    """How many simulations to make between two looks at the clock, for work that can't look at it in between.

    With a limit in seconds the first chunk is one simulation, none is more than twice the largest before it, and none
    is expected to take longer than is left.
    """

    def __init__(self) -> None:
        self.pace = 0.0  # seconds a simulation of the last chunk, 0 before there is one
        self._largest = 0

    def next(self, most: float, seconds_left: float | None) -> int:
        """Size of the next chunk: `most` or less; `seconds_left` is None where time isn't limited."""
        count = int(max(0, most))
        if seconds_left is None or count <= 1:
            return count
        affordable = min(_CHUNK_SECONDS, seconds_left) / self.pace if self.pace > 0.0 else 1.0
        return max(1, int(min(count, affordable, 2 * self._largest)))

    def took(self, count: int, seconds: float) -> None:
        """Note how long a chunk took."""
        self.pace = seconds / count
        self._largest = max(self._largest, count)
