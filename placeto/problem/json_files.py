"""JSON files, read within limits and written whole."""

from __future__ import annotations

import gzip
import json
import os
import re
import zlib
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from placeto.problem.files import atomic_write
from placeto.problem.messages import LONGEST_INTEGER, quote

MOST_BYTES = 128 * 2**20
"""Largest size of a file, unpacked.

A graph of 100,000 ops takes 20 to 30 MB.
"""
MOST_NESTED = 32
"""How deep lists and objects may be nested; no format nests more than six."""
MOST_VALUES = 4_000_000
"""Most keys and values in all lists and objects. A graph of 100,000 ops has 2 to 3 million; each takes up to 130 bytes.
"""
# A string, even without a closing quote; possessive, so that matching takes linear time.
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)', re.DOTALL)
_BLOCK = 2**20  # bytes that are looked at together
_STEPS = np.zeros(256, np.int8)
_STEPS[list(b"[{")], _STEPS[list(b"]}")] = 1, -1
_COUNTED = np.zeros(256, bool)
_COUNTED[list(b"[{:,")] = True


def read_json(path: str | Path, error: type[ValueError]) -> Any:
    """Parse a JSON file, gzip-compressed where the name ends in ``.gz``.

    NaN and infinities are read as Python does; integers of more than 40 digits become floats.

    Raises:
        error: the content is no JSON, has a key twice in one object, or exceeds `MOST_BYTES`, `MOST_NESTED` or
            `MOST_VALUES`; the message names the file.
        OSError: the file can't be read.
    """

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        members = dict(pairs)
        if len(members) < len(pairs):
            key = next(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
            raise error(f"{path}: {quote(key)} stands in one object twice")
        return members

    data = read_bytes(path, error)
    if not data.strip():
        raise error(f"{path}: not valid JSON: the file is empty")
    quotes = data.count(b'"') - data.count(b'\\"')  # one or two a string
    nested, values = _content(data) if quotes <= 2 * MOST_VALUES else (0, quotes // 2)
    if nested > MOST_NESTED:
        raise error(f"{path}: lists and objects are nested more than {MOST_NESTED} deep")
    if values > MOST_VALUES:
        raise error(f"{path}: more than {MOST_VALUES} keys and values, the most that are read")
    if len(data) * _width(data) > MOST_BYTES:
        raise error(f"{path}: so long a file must be ASCII: write other characters as \\u and their number")
    try:
        text = data.decode(json.detect_encoding(data))
        del data
        return json.loads(text, parse_int=_integer, object_pairs_hook=once)
    except (json.JSONDecodeError, UnicodeDecodeError) as problem:
        raise error(f"{path}: not valid JSON: {problem}") from None
    except RecursionError:  # of UTF-16 and UTF-32, in which the bytes of quotes stand in other characters
        raise error(f"{path}: lists and objects are nested more than {MOST_NESTED} deep") from None


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


def _content(data: bytes) -> tuple[int, int]:
    """Return how deep lists and objects are nested, and how many keys and values they have, at most."""
    bare, nested, deepest, values = np.frombuffer(_STRING.sub(b"", data), np.uint8), 0, 0, 0
    for start in range(0, len(bare), _BLOCK):
        block = bare[start : start + _BLOCK]
        depths = nested + np.cumsum(_STEPS[block], dtype=np.int32)
        nested, deepest = int(depths[-1]), max(deepest, int(depths.max()))
        values += int(np.count_nonzero(_COUNTED[block]))
    return deepest, values


def _width(data: bytes) -> int:
    """Return the most bytes that a character of a text in UTF-8 takes in a string of Python."""
    most = int(np.frombuffer(data, np.uint8).max())
    return 4 if most >= 0xF0 else 2 if most >= 0xC4 else 1


def _integer(digits: str) -> float:
    return int(digits) if len(digits) <= LONGEST_INTEGER else float(digits)
