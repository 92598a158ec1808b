"""What all importers share."""

from __future__ import annotations

from pathlib import Path

from placeto.problem.fields import read_bytes
from placeto.problem.graph import GraphError


class ImporterError(GraphError):
    """A file of another program that can't be read as a graph; the message names the file and the line or node."""


def read_lines(path: str | Path, kind: str) -> list[str]:
    """The lines of a text file; `kind` is what a message calls what it should have been.

    Raises:
        ImporterError: no text, or too much.
        OSError: the file can't be read.
    """
    try:
        return read_bytes(path, ImporterError).decode().splitlines()
    except UnicodeDecodeError:
        raise ImporterError(f"{path}: not a {kind}: not a text file") from None
