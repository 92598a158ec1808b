"""Files of text, for importers."""

from __future__ import annotations

from pathlib import Path

from placeto.problem.fields import read_bytes
from placeto.problem.graph import GraphError


def read_lines(path: str | Path, kind: str) -> list[str]:
    """The lines of a text file; `kind` is what a message calls what it should have been.

    Raises:
        GraphError: no text, or too much.
        OSError: the file can't be read.
    """
    try:
        return read_bytes(path, GraphError).decode().splitlines()
    except UnicodeDecodeError:
        raise GraphError(f"{path}: not a {kind}: not a text file") from None
