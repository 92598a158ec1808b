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

from placeto.errors import TrainingError
from placeto.formats.gantt import missing_letters_are_boxes
from placeto.training.checkpoint import FILE_NAME
from placeto.training.tags import tags_table

BY_PLACEMENTS = "by-placements"
"""Folder within a run's folder, with the same curves against the number of placements simulated."""
OF_PLACEMENTS = "x-placements/"
"""How the tags of these curves begin, so that tensorboard shows them in groups of their own, behind the others."""
_EVENTS = "events.out.tfevents."  # how names of event files begin
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # errors of a full disk, quota or file size


class Curves:
    """Writes numbers, pictures and settings of a run as tensorboard events. A context manager.

    All methods raise a `TrainingError` once the files can't be written. Tags are those of `TAGS`.

    Args:
        out: the run's folder. None = nothing is written.
        by_placements: whether numbers are also written against placements simulated, to the folder `BY_PLACEMENTS`.
        resumed: iterations and placements after which the run goes on. Later points, which the interrupted run wrote
            after its last checkpoint, are hidden. None = the run begins anew, and all earlier points in the folder are
            hidden.
    """

    def __init__(self, out: str | None, *, by_placements: bool = False, resumed: tuple[int, int] | None = None) -> None:
        self.out = out
        self._writers: list[SummaryWriter] = []  # none, or one against steps, or also one against placements
        self._hook = threading.excepthook  # to be restored at the end
        self._folders: list[Path] = []
        if out is not None:
            self._folders = [Path(out), Path(out) / BY_PLACEMENTS] if by_placements else [Path(out)]
        self._first = [after + 1 for after in resumed or (-1, -1)]  # first step that earlier files may not have

    def __enter__(self) -> Curves:
        threading.excepthook = self._unless_told  # set first: a writer at once writes in a thread of its own
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
        except TrainingError:
            if kind is None:  # else an earlier error is on its way, which is the one to show
                raise
        finally:
            threading.excepthook = self._hook

    def numbers(self, values: Mapping[str, float], step: int, placements: int = 0) -> None:
        """Add a point to each curve, by tag: at a step, and in `BY_PLACEMENTS` at a number of placements simulated."""
        with self._written() as writers:
            for writer, x, group in zip(writers, (step, placements), ("", OF_PLACEMENTS), strict=False):
                for tag, value in values.items():
                    writer.add_scalar(group + tag, value, x)

    def distribution(self, tag: str, values: np.ndarray, step: int) -> None:
        """Add a histogram of values at a step."""
        with self._written() as writers:
            for writer in writers[:1]:
                writer.add_histogram(tag, values, step)

    def picture(self, tag: str, figure: Figure, step: int) -> None:
        """Add a picture at a step."""
        with self._written() as writers, missing_letters_are_boxes():
            for writer in writers[:1]:
                writer.add_figure(tag, figure, step)

    def settings(self, values: Mapping[str, Any], final: Mapping[str, float], step: int) -> None:
        """Add the run's settings with its final numbers, for tensorboard's table of hyperparameters."""
        with self._written() as writers:
            for writer in writers[:1]:
                # Not `add_hparams`: it writes to a second file, which tensorboard may read before the first one.
                for summary in hparams(dict(values), dict(final)):
                    writer._get_file_writer().add_summary(summary, step)
                for tag, value in final.items():
                    writer.add_scalar(tag, value, step)

    def explain(self) -> None:
        """Add the meaning of all tags, as a text beside the curves."""
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
            raise TrainingError(
                f"{self.out}: curves can't be written ({problem.strerror}); {advice}: {after}"
            ) from None

    def _unless_told(self, arguments: threading.ExceptHookArgs) -> None:
        """Print no traceback of an OSError in tensorboard's thread: the next call of a writer raises it again."""
        if not isinstance(arguments.exc_value, OSError):
            self._hook(arguments)


def _sort_before_new_files(folder: Path) -> None:
    """Rename all event files if the name of one would sort after that of a new one, as when a clock was set back.

    Tensorboard reads files in the order of their names, which have the second in which they were made.
    """
    files = sorted(folder.glob(f"{_EVENTS}*"))
    if files and files[-1].name >= f"{_EVENTS}{int(time.time()):010d}":
        for number, path in enumerate(files):
            rest = path.name.removeprefix(_EVENTS).partition(".")[2]
            path.rename(folder / f"{_EVENTS}{number:010d}.{rest}")
