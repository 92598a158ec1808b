"""How many simulations to make before the clock is read again."""

from __future__ import annotations

_CHUNK_SECONDS = 0.02  # aimed duration of a chunk


class Chunks:
    """Sizes of chunks of simulations, for work that can read the clock only between chunks.

    With a limit in seconds, the first chunk is one simulation. No chunk is more than twice the largest before it, and
    none is expected to take longer than 0.02 s or than the time that is left.
    """

    def __init__(self) -> None:
        self.pace = 0.0  # seconds per simulation of the last chunk; 0 before the first one
        self._largest = 0

    def next(self, most: float, seconds_left: float | None) -> int:
        """Return the size of the next chunk: `most` or less; `seconds_left` is None if time isn't limited."""
        count = int(max(0, most))
        if seconds_left is None or count <= 1:
            return count
        affordable = min(_CHUNK_SECONDS, seconds_left) / self.pace if self.pace > 0.0 else 1.0
        return max(1, int(min(count, affordable, 2 * self._largest)))

    def took(self, count: int, seconds: float) -> None:
        """Record that a chunk of `count` simulations took `seconds`."""
        self.pace = seconds / count
        self._largest = max(self._largest, count)
