"""Ctrl-C and SIGTERM: as an exception, and as a request that a loop looks at between two steps."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

_ONCE_S = 1.0  # one that reaches a process twice, from its group and from who started it, comes within this time


class Interruption(KeyboardInterrupt):
    """A signal ended the work, which is tidied up.

    Attributes:
        number: the signal's.
        kept: what is left of the work, as a phrase; may be empty.
    """

    def __init__(self, number: int, kept: str = "") -> None:
        super().__init__(number, kept)
        self.number, self.kept = number, kept

    def __str__(self) -> str:
        what = "interrupted" if self.number == signal.SIGINT else f"ended by {signal.Signals(self.number).name}"
        return f"{what}: {self.kept}" if self.kept else what


@contextmanager
def sigterm_interrupts() -> Iterator[None]:
    """Within it SIGTERM raises `Interruption`, as Ctrl-C raises KeyboardInterrupt; a second one ends the process."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_DFL)
        raise Interruption(number)

    if signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:  # someone else's, who knows better
        yield
        return
    try:
        signal.signal(signal.SIGTERM, interrupt)
    except ValueError:  # not in the main thread: it stays as it is
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


class StopRequest:
    """While open, Ctrl-C and SIGTERM only set `number`, to that of the signal; 0 before. A context manager.

    Another one, a second or more later, raises KeyboardInterrupt.
    """

    def __init__(self) -> None:
        self.number = 0
        self._since = 0.0
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
        if not self.number:
            self.number, self._since = number, time.monotonic()
        elif time.monotonic() - self._since > _ONCE_S:
            raise KeyboardInterrupt
