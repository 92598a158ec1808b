"""Ctrl-C and SIGTERM as a request that a loop looks at between two steps."""

from __future__ import annotations

import signal
from types import FrameType
from typing import Any


class StopRequest:
    """While open, Ctrl-C and SIGTERM only set `requested`; a second one acts as usual. A context manager."""

    def __init__(self) -> None:
        self.requested = False
        self._old: dict[int, Any] = {}

    def __enter__(self) -> StopRequest:
        for number in (signal.SIGINT, signal.SIGTERM):
            try:
                self._old[number] = signal.signal(number, self._ask)
            except ValueError:  # not in the main thread: signals stay as they are
                break
        return self

    def __exit__(self, *details: object) -> None:
        for number, handler in self._old.items():
            signal.signal(number, handler)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True
