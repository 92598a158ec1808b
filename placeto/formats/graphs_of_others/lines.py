"""Reading of files, for importers."""

from __future__ import annotations

from pathlib import Path

from placeto.errors import GraphError
from placeto.problem.json_files import read_bytes

_MARK = "\ufeff".encode()  # the byte order mark, with which some editors begin a file
_MOST_LINES = 1_000_000


def plain_name(path: str | Path) -> str:
    """The name of a file, without the ``.gz`` of a compressed one."""
    return Path(path).name.removesuffix(".gz")


def content(path: Path) -> bytes:
    """Return the content of a file, as `read_bytes` does; b"" if there is no such file, or none that can be loaded.

    Raises:
        OSError: the file can't be read.
    """
    try:
        return read_bytes(path, GraphError).removeprefix(_MARK) if path.is_file() else b""
    except GraphError:
        return b""


def read_lines(path: str | Path, kind: str) -> list[str]:
    """Return the lines of a text file, without spaces around them; unpacked if its name ends in ``.gz``.

    Args:
        path: the path of the file.
        kind: what the file should be, for the error message, such as "PipeDream profile".

    Raises:
        GraphError: the file isn't text in UTF-8, is damaged, or is too large.
        OSError: the file can't be read.
    """
    data = read_bytes(path, GraphError).removeprefix(_MARK)
    if data.count(b"\n") > _MOST_LINES:
        raise GraphError(f"{path}: more than {_MOST_LINES} lines, the most that are read of a {kind}")
    try:
        return [line.strip() for line in data.decode().split("\n")]
    except UnicodeDecodeError:
        raise GraphError(f"{path}: not a {kind}: not a text file") from None
