"""Files of text, for importers."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path

from placeto.problem.fields import read_bytes
from placeto.problem.graph import GraphError

_MARK = "\ufeff".encode()  # some editors begin a file with it


def plain_name(path: str | Path) -> str:
    """The name of a file, without the ``.gz`` of a compressed one."""
    return Path(path).name.removesuffix(".gz")


def head(path: Path, length: int) -> bytes:
    """The first bytes of a file, unpacked where its name ends in ``.gz``; none if it isn't there, or is damaged."""
    if not path.is_file():
        return b""
    try:
        with gzip.open(path) if path.suffix == ".gz" else open(path, "rb") as file:
            return file.read(length).removeprefix(_MARK)
    except (gzip.BadGzipFile, EOFError, zlib.error):
        return b""


def read_lines(path: str | Path, kind: str) -> list[str]:
    """The lines of a text file, also of a compressed one; `kind` is what a message calls what it should have been.

    Raises:
        GraphError: no text, or too much.
        OSError: the file can't be read.
    """
    try:
        return read_bytes(path, GraphError).removeprefix(_MARK).decode().splitlines()
    except UnicodeDecodeError:
        raise GraphError(f"{path}: not a {kind}: not a text file") from None
