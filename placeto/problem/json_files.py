"""JSON files, read within limits and written whole."""

from __future__ import annotations

import gzip
import json
import os
import zlib
from collections import Counter
from pathlib import Path
from typing import Any

from placeto.problem.files import atomic_write
from placeto.problem.messages import quote

MOST_BYTES = 128 * 2**20
"""Largest size of a file, unpacked.

A graph of 100,000 ops takes 20 to 30 MB.
"""


def read_json(path: str | Path, error: type[ValueError]) -> Any:
    """Parse a JSON file, gzip-compressed where the name ends in ``.gz``; NaN and infinities are read as Python does.

    Raises:
        error: the content is no JSON, has a key twice in one object, or exceeds `MOST_BYTES`; the message names the
            file.
        OSError: the file can't be read.
    """
    data = read_bytes(path, error)
    if not data.strip():
        raise error(f"{path}: not valid JSON: the file is empty")
    try:
        return json.loads(data.decode(json.detect_encoding(data)), object_pairs_hook=_once)
    except RecursionError:
        raise error(f"{path}: lists and objects are nested too deep") from None
    except ValueError as problem:
        raise error(f"{path}: not valid JSON: {problem}") from None


def read_bytes(path: str | Path, error: type[ValueError]) -> bytes:
    """Return the content of a file, unpacked if its name ends in ``.gz``.

    Raises:
        error: the file has more than `MOST_BYTES`, unpacked, or is damaged; the message names the file.
        OSError: the file can't be read.
    """
    if not isinstance(path, str | os.PathLike):
        raise error(f"the path of a file is needed, not {quote(path)}")
    packed = Path(path).suffix == ".gz"
    try:
        with gzip.open(path) if packed else open(path, "rb") as file:
            data = file.read(MOST_BYTES + 1)
    except (gzip.BadGzipFile, EOFError, zlib.error) as problem:
        raise error(f"{path}: not a whole gzip file: {problem}") from None
    if len(data) > MOST_BYTES:
        raise error(f"{path}: more than {MOST_BYTES} bytes{' unpacked' if packed else ''}, the most that is read")
    return data


def check_json_name(path: str | Path, error: type[ValueError], what: str = "") -> None:
    """Refuse to write JSON to a file whose name would not be recognized on reading.

    What exists and isn't a regular file, such as a pipe, may have any name.

    Raises:
        error: the name doesn't end in ``.json`` or ``.json.gz``, or `path` is no path.
    """
    if not isinstance(path, str | Path):
        raise error(f"{what}the path of a .json file is needed, not {quote(path)}")
    target = Path(path)
    if not target.name.endswith((".json", ".json.gz")) and (target.is_file() or not target.exists()):
        raise error(f"{what}{path}: must end in .json or .json.gz")


def write_json(document: Any, path: str | Path) -> None:
    """Write a JSON file, gzip-compressed (reproducibly) where the name ends in ``.gz``.

    Raises:
        OSError: it can't be written; a file that was there before is untouched.
    """
    packed = Path(path).suffix == ".gz"
    data = json.dumps(document, indent=None if packed else 1).encode()
    with atomic_write(path) as temporary:
        temporary.write_bytes(gzip.compress(data, mtime=0) if packed else data)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        key = next(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
        raise ValueError(f"{quote(key)} stands in one object twice")
    return members
