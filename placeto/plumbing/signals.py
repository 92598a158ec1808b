"""Ctrl-C and SIGTERM, either as an exception or as a request to stop, which a loop checks between two steps."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

# Within so many seconds, a second signal counts as the same one: it may come from the process group and the parent.
_ONCE_S = 1.0


class Interruption(KeyboardInterrupt):
    """A signal has ended the work.

    Attributes:
        number: the number of the signal.
        kept: which results of the work are kept, as a phrase; may be empty.
    """

    def __init__(self, number: int, kept: str = "") -> None:
        super().__init__(number, kept)
        self.number, self.kept = number, kept

    def __str__(self) -> str:
        what = "interrupted" if self.number == signal.SIGINT else f"ended by {signal.Signals(self.number).name}"
        return f"{what}: {self.kept}" if self.kept else what


@contextmanager
def sigterm_interrupts() -> Iterator[None]:
    """Within it, SIGTERM raises `Interruption`, as Ctrl-C raises KeyboardInterrupt; a second one ends the process."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_DFL)
        raise Interruption(number)

    if signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:  # another handler was set before: it stays
        yield
        return
    try:
        signal.signal(signal.SIGTERM, interrupt)
    except ValueError:  # not in the main thread: the handler stays as it is
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


class StopRequest:
    """A context manager within which Ctrl-C and SIGTERM only set `number` to the signal's number; it is 0 before.

    Another signal, more than a second after the first, raises KeyboardInterrupt.
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
