"""Tensorboard curves of a training run."""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from torch.utils.tensorboard import SummaryWriter
from torch.utils.tensorboard.summary import hparams

from placeto.formats.gantt import missing_letters_are_boxes
from placeto.training.checkpoint import FILE_NAME
from placeto.training.tags import meaning, tags_table

BY_PLACEMENTS = "by-placements"
"""Folder within a run's, of the same curves against placements simulated."""
_EVENTS = "events.out.tfevents."  # how names of event files begin
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class CurvesError(ValueError):
    """Curves that can't be written; the message says how to go on."""


class Curves:
    """Writes numbers, pictures and settings of a run; without a folder they go nowhere. A context manager.

    All methods raise a `CurvesError` once the file can't be written, and a ValueError if a tag isn't in `TAGS`.

    Args:
        out: the run's folder. None = write nothing.
        by_placements: whether numbers are also written against placements simulated, to a folder within.
        resumed: iterations and placements after which the run goes on: points beyond them, which an interrupted run
            left behind its last checkpoint, are hidden. None = the run begins, and hides all that is in the folder.
    """

    def __init__(self, out: str | None, *, by_placements: bool = False, resumed: tuple[int, int] | None = None) -> None:
        self.out = out
        self._writers: list[SummaryWriter] = []  # none, or one against steps and perhaps one against placements
        self._hook = threading.excepthook
        self._folders: list[Path] = []
        if out is not None:
            self._folders = [Path(out), Path(out) / BY_PLACEMENTS] if by_placements else [Path(out)]
        self._first = [after + 1 for after in resumed or (-1, -1)]

    def __enter__(self) -> Curves:
        threading.excepthook = self._unless_told  # first: a writer begins to write in a thread of its own
        try:
            with self._written() as writers:
                for folder, step in zip(self._folders, self._first, strict=False):
                    _sort_before_new_files(folder)
                    writers.append(SummaryWriter(str(folder), purge_step=step))
        except BaseException:
            threading.excepthook = self._hook
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, *details: object) -> None:
        try:
            with self._written() as writers:
                for writer in writers:
                    writer.close()
        except CurvesError:
            if kind is None:  # else something else was first
                raise
        finally:
            threading.excepthook = self._hook

    def numbers(self, values: Mapping[str, float], step: int, placements: int = 0) -> None:
        """A point of each curve, by tag: at a step, and at a number of placements simulated."""
        for tag in values:
            meaning(tag)
        with self._written() as writers:
            for writer, x in zip(writers, (step, placements), strict=False):
                for tag, value in values.items():
                    writer.add_scalar(tag, value, x)

    def distribution(self, tag: str, values: np.ndarray, step: int) -> None:
        """A histogram."""
        meaning(tag)
        with self._written() as writers:
            for writer in writers[:1]:
                writer.add_histogram(tag, values, step)

    def picture(self, tag: str, figure: Figure, step: int) -> None:
        """A picture."""
        meaning(tag)
        with self._written() as writers, missing_letters_are_boxes():
            for writer in writers[:1]:
                writer.add_figure(tag, figure, step)

    def settings(self, values: Mapping[str, Any], final: Mapping[str, float], step: int) -> None:
        """The run's settings with what came of them."""
        with self._written() as writers:
            for writer in writers[:1]:
                # Not `add_hparams`: its points are in a second file, which is read first if its name says so.
                for summary in hparams(dict(values), dict(final)):
                    writer._get_file_writer().add_summary(summary, step)
                for tag, value in final.items():
                    writer.add_scalar(tag, value, step)

    def explain(self) -> None:
        """What the tags mean, as a text beside the curves."""
        with self._written() as writers:
            for writer in writers[:1]:
                writer.add_text("tags", tags_table())

    @contextmanager
    def _written(self) -> Iterator[list[SummaryWriter]]:
        try:
            yield self._writers
        except OSError as problem:
            advice = "make room" if problem.errno in _FULL else "make the folder writable"
            saved = (Path(self.out or ".") / FILE_NAME).exists()
            after = "--resume goes on from the last checkpoint" if saved else "nothing was saved yet, train anew"
            raise CurvesError(f"{self.out}: curves can't be written ({problem.strerror}); {advice}: {after}") from None

    def _unless_told(self, arguments: threading.ExceptHookArgs) -> None:
        """Tensorboard's thread hands its error on to whoever writes next: no need for a traceback as well."""
        if not isinstance(arguments.exc_value, OSError):
            self._hook(arguments)


def _sort_before_new_files(folder: Path) -> None:
    """Rename event files if a new one would not come after them, as where a clock was set back.

    Tensorboard reads files in the order of their names, which begin with the second in which they were made.
    """
    files = sorted(folder.glob(f"{_EVENTS}*"))
    if files and files[-1].name >= f"{_EVENTS}{int(time.time()):010d}":
        for number, path in enumerate(files):
            rest = path.name.removeprefix(_EVENTS).partition(".")[2]
            path.rename(folder / f"{_EVENTS}{number:010d}.{rest}")
