"""Progress of long work, on stderr: a bar on a terminal, and plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from placeto.plumbing.terminal import printable

LINE_EVERY_S = 10.0


class ProgressBar:
    """Shows how much of `total` is done, with a short note beside it.

    A context manager. On a terminal it draws a bar; elsewhere (logs, pipes, CI) it writes one line at most every
    `LINE_EVERY_S` seconds, and the last state when it closes.

    >>> with ProgressBar("placing", total=2, stream=sys.stdout) as bar:
    ...     bar.advance(note="etf")
    ...     bar.advance(note="heft")
    placing: 50 % etf
    placing: 100 % heft
    """

    def __init__(self, description: str, total: float, stream: TextIO | None = None) -> None:
        self.description = description
        self.total = total
        self.completed = 0.0
        self.note = ""
        self._stream = stream or sys.stderr
        self._last_line = -float("inf")
        self._pending = False
        self._bar: Progress | None = None

    def __enter__(self) -> ProgressBar:
        if self._stream.isatty():
            columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f} %"))
            clocks = (TimeElapsedColumn(), TimeRemainingColumn(), TextColumn("{task.fields[note]}"))
            self._bar = Progress(*columns, *clocks, console=Console(file=self._stream))
            self._task = self._bar.add_task(self.description, total=self.total, note="")
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
        elif self._pending:
            self._write_line()

    def update(self, completed: float, note: str = "") -> None:
        """Set how much of the total is done, and the note beside it."""
        note = printable(note)
        self.completed, self.note = completed, note
        if self._bar is not None:
            self._bar.update(self._task, completed=completed, note=note)
            return
        self._pending = True
        if time.monotonic() - self._last_line >= LINE_EVERY_S:
            self._write_line()

    def advance(self, note: str = "") -> None:
        """Add 1 to what is done, and set the note."""
        self.update(self.completed + 1.0, note)

    def after(self, before: float) -> Callable[[int, int, str], None]:
        """Return a function `report(done, total, note)` for a part of the work that begins when `before` is done."""
        return lambda done, total, note: self.update(before + done, note)

    def _write_line(self) -> None:
        share = 100.0 * self.completed / self.total if self.total else 100.0
        print(f"{self.description}: {min(share, 100.0):.0f} % {self.note}".rstrip(), file=self._stream, flush=True)
        self._last_line = time.monotonic()
        self._pending = False
