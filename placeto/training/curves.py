"""Tensorboard curves of a training run."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from matplotlib.figure import Figure
from torch.utils.tensorboard import SummaryWriter


class CurvesError(ValueError):
    """Curves that can't be written; the message says how to go on."""


class Curves:
    """Writes numbers, pictures and settings of a run; without a folder they go nowhere. A context manager.

    All methods raise a `CurvesError` once the file can't be written.
    """

    def __init__(self, out: str | None, purge_step: int | None = None) -> None:
        self.out = out
        self._writer = None if out is None else SummaryWriter(out, purge_step=purge_step)
        self._hook = threading.excepthook

    def __enter__(self) -> Curves:
        threading.excepthook = self._unless_told
        return self

    def __exit__(self, kind: type[BaseException] | None, *details: object) -> None:
        try:
            with self._written() as writer:
                if writer is not None:
                    writer.close()
        except CurvesError:
            if kind is None:  # else something else was first
                raise
        finally:
            threading.excepthook = self._hook

    def numbers(self, values: Mapping[str, float], step: int) -> None:
        """A point of each curve, by tag."""
        with self._written() as writer:
            if writer is not None:
                for tag, value in values.items():
                    writer.add_scalar(tag, value, step)

    def picture(self, tag: str, figure: Figure, step: int) -> None:
        """A picture."""
        with self._written() as writer:
            if writer is not None:
                writer.add_figure(tag, figure, step)

    def settings(self, values: Mapping[str, Any], final: Mapping[str, float], step: int) -> None:
        """The run's settings with what came of them."""
        with self._written() as writer:
            if writer is not None:
                writer.add_hparams(dict(values), dict(final), run_name=".", global_step=step)

    @contextmanager
    def _written(self) -> Iterator[SummaryWriter | None]:
        try:
            yield self._writer
        except OSError as problem:
            raise CurvesError(
                f"{self.out}: curves can't be written ({problem.strerror}); make room: "
                "--resume goes on from the last checkpoint"
            ) from None

    def _unless_told(self, arguments: threading.ExceptHookArgs) -> None:
        """Tensorboard's thread hands its error on to whoever writes next: no need for a traceback as well."""
        if not isinstance(arguments.exc_value, OSError):
            self._hook(arguments)
