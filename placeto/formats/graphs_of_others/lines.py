"""Reading of text files, for importers."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path

from placeto.errors import GraphError
from placeto.problem.json_files import read_bytes

_MARK = "\ufeff".encode()  # the byte order mark, with which some editors begin a file
_MOST_LINES = 1_000_000
_ENDS = b"\n\r\x0b\x0c\x1c\x1d\x1e\x85\xa8\xa9"  # bytes of which one is in each end of a line


def plain_name(path: str | Path) -> str:
    """The name of a file, without the ``.gz`` of a compressed one."""
    return Path(path).name.removesuffix(".gz")


def head(path: Path, length: int) -> bytes:
    """Return up to `length` bytes from the beginning of a file, unpacked if its name ends in ``.gz``.

    Returns b"" if there is no such file, or if the compressed file is damaged.

    Raises:
        OSError: the file can't be read.
    """
    if not path.is_file():
        return b""
    try:
        with gzip.open(path) if path.suffix == ".gz" else open(path, "rb") as file:
            return file.read(length).removeprefix(_MARK)
    except (gzip.BadGzipFile, EOFError, zlib.error):
        return b""


def read_lines(path: str | Path, kind: str) -> list[str]:
    """Return the lines of a text file, unpacked if its name ends in ``.gz``.

    Args:
        path: the path of the file.
        kind: what the file should be, for the error message, such as "PipeDream profile".

    Raises:
        GraphError: the file isn't text in UTF-8, is damaged, or is too large.
        OSError: the file can't be read.
    """
    data = read_bytes(path, GraphError).removeprefix(_MARK)
    if sum(data.count(end) for end in _ENDS) > _MOST_LINES:
        raise GraphError(f"{path}: more than {_MOST_LINES} lines, the most that are read of a {kind}")
    try:
        return data.decode().splitlines()
    except UnicodeDecodeError:
        raise GraphError(f"{path}: not a {kind}: not a text file") from None
