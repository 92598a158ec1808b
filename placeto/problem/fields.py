"""JSON files, and checks of their fields, from which all readers of files are made.

A reader has a table of the fields of a record, and gets their checked values. A record that breaks a rule raises the
error of the reader's format. Its message is one sentence, which says what is wrong and what would be right:

    _LINK = {"bandwidth": Field(number(above=0.0)), "latency_us": Field(number(), 0.0)}
    with within(ClusterError, path), within(ClusterError, "link", name):
        values = read_fields(record, _LINK, ClusterError)
"""

from __future__ import annotations

import gzip
import json
import math
import os
import re
import reprlib
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np

from placeto.problem.files import atomic_write

INT64_MAX = 2**63 - 1
MOST_BYTES = 128 * 2**20
"""Largest size of a file, unpacked.

A graph of 100,000 ops takes 20 to 30 MB. In memory, the worst content takes 25 times the size of its file.
"""
MOST_NESTED = 32
"""How deep lists and objects may be nested; no format nests more than six."""
_LONGEST_INTEGER = 40  # digits; longer ones become floats, perhaps infinite, which no field accepts
_LONGEST_QUOTE = 60
_MOST_CHOICES = 24

# A string, even without a closing quote; possessive, so that matching takes linear time.
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)', re.DOTALL)
_REQUIRED = object()

Check = Callable[[Any, str, type[ValueError]], Any]
"""Returns a value, or raises the error with a message that begins with the field's name."""


@dataclass(frozen=True)
class Field:
    """The check of a field, and its value if it is left out. A field without `default` is required."""

    check: Check
    default: Any = _REQUIRED


def read_fields(
    record: Any, table: Mapping[str, Field], error: type[ValueError], *, others: bool = False
) -> dict[str, Any]:
    """Return the checked values of all fields of a table, with defaults for those that the record leaves out.

    With `others`, the record may have fields that aren't in the table; they are left out of the result.

    Raises:
        error: the record is no object, has an unknown field, lacks a required one, or has one that its check refuses.
    """
    if not isinstance(record, Mapping):
        raise error(f"must be an object with {', '.join(table)}, not {quote(record)}")
    if not others:
        refuse_unknown(record, table, error)
    values = {}
    for key, field in table.items():
        if key in record:
            values[key] = field.check(record[key], key, error)
        elif field.default is _REQUIRED:
            raise error(f"{key} is missing")
        else:
            values[key] = field.default
    return values


def read_document(
    document: Any, form: str, what: str, table: Mapping[str, Field], error: type[ValueError], *, others: bool = False
) -> dict[str, Any]:
    """Return the checked values of the fields of a whole file, without its field "format".

    Args:
        document: the parsed content of the file.
        form: the format that the file must have, such as "placeto.graph/1".
        what: what the file must be, for the message, such as "a graph file".
        table: the fields other than "format".
        error: the exception that is raised, as in `read_fields`.
        others: whether fields that aren't in the table are allowed.
    """
    if not isinstance(document, dict) or document.get("format") != form:
        raise error(f'not {what}: "format" must be "{form}"')
    values = read_fields(document, {**table, "format": Field(text)}, error, others=others)
    del values["format"]
    return values


def table_of(kind: type) -> dict[str, Field]:
    """The table of a dataclass whose fields are annotated with checks, as in ``size: Annotated[int, integer()]``."""
    hints = get_type_hints(kind, include_extras=True)
    table = {}
    for own in fields(kind):
        default = own.default if own.default_factory is MISSING else own.default_factory()
        table[own.name] = Field(hints[own.name].__metadata__[0], _REQUIRED if default is MISSING else default)
    return table


def nested(table: Mapping[str, Field]) -> Check:
    """A check for an object inside a record, which has the fields of a table. It returns their values."""

    def check(value: Any, key: str, error: type[ValueError]) -> dict[str, Any]:
        with within(error, key):
            return read_fields(value, table, error)

    return check


def refuse_unknown(record: Mapping[Any, Any], known: Collection[str], error: type[ValueError]) -> None:
    """Raise the error if the record has a field that isn't in `known`."""
    for key in record:
        if key not in known:
            raise error(f"unknown field {quote(key)}; known: {', '.join(sorted(known))}")


@contextmanager
def within(error: type[ValueError], what: object, name: Any = None) -> Iterator[None]:
    """Put `what`, and the quoted `name` if there is one, before the message of an `error` that the block raises."""
    try:
        yield
    except error as problem:
        where = what if name is None else f"{what} {quote(name)}"
        raise error(f"{where}: {problem}") from None


def anything(value: Any, key: str, error: type[ValueError]) -> Any:
    """Return the value unchecked, for fields that their reader checks."""
    return value


def number(*, above: float | None = None, infinite: bool = False) -> Check:
    """A check for a number >= 0, or > `above`, finite unless `infinite` is set. It returns a float."""
    rule = f"a {'' if infinite else 'finite '}number {'>= 0' if above is None else f'> {above:g}'}"

    def check(value: Any, key: str, error: type[ValueError]) -> float:
        found = _float(value)
        good = found >= 0 if above is None else found > above
        if not good or (found == math.inf and not infinite):
            raise error(f"{key} must be {rule}, not {quote(value)}")
        return found

    return check


def integer(least: int = 0, most: int = INT64_MAX) -> Check:
    """A check for an integer from `least` to `most`."""
    rule = f"an integer from {least} to {'2^63 - 1' if most == INT64_MAX else most}"

    def check(value: Any, key: str, error: type[ValueError]) -> int:
        if isinstance(value, bool) or not isinstance(value, int | np.integer) or not least <= value <= most:
            raise error(f"{key} must be {rule}, not {quote(value)}")
        return int(value)

    return check


def size(value: Any, key: str, error: type[ValueError]) -> int:
    """Check a whole number of bytes, which may be a float such as 16e9, and return it as an int."""
    found = _float(value)
    if not (0 <= found < 2.0**63 and found == math.floor(found)):
        raise error(f"{key} must be a whole number of bytes from 0 to 2^63 - 1, not {quote(value)}")
    return int(value)


def flag(value: Any, key: str, error: type[ValueError]) -> bool:
    """Check a bool."""
    if not isinstance(value, bool):
        raise error(f"{key} must be true or false, not {quote(value)}")
    return value


def text(value: Any, key: str, error: type[ValueError]) -> str:
    """Check a string without lone surrogates, which files can't have."""
    if not isinstance(value, str):
        raise error(f"{key} must be a string, not {quote(value)}")
    if not value.isascii() and re.search("[\ud800-\udfff]", value):
        raise error(f"{key} must be a string without half surrogate pairs, not {quote(value)}")
    return value


def optional(check: Check) -> Check:
    """A check that also accepts None."""
    return lambda value, key, error: None if value is None else check(value, key, error)


def items(check: Check, each: str) -> Check:
    """A check for a list, whose items all pass `check`. Messages call an item `each`."""

    def check_all(value: Any, key: str, error: type[ValueError]) -> list[Any]:
        if not isinstance(value, list | tuple):
            raise error(f"{key} must be a list, not {quote(value)}")
        return [check(item, each, error) for item in value]

    return check_all


def mapping(check: Check) -> Check:
    """A check for an object with any keys, whose values all pass `check`."""

    def check_all(value: Any, key: str, error: type[ValueError]) -> dict[str, Any]:
        if not isinstance(value, Mapping):
            raise error(f"{key} must be an object, not {quote(value)}")
        for name in value:
            text(name, f"a key of {key}", error)
        return {name: check(item, f"{key}[{name[:_LONGEST_QUOTE]!r}]", error) for name, item in value.items()}

    return check_all


def choice(*known: str) -> Check:
    """A check for a string that is one of `known`."""

    def check(value: Any, key: str, error: type[ValueError]) -> str:
        if not isinstance(value, str) or value not in known:
            raise error(f"{key} must be one of {', '.join(known)}, not {quote(value)}")
        return value

    return check


def check_array(value: Any, key: str, kind: type[np.generic], length: int, error: type[ValueError]) -> None:
    """Raise the error unless the value is an array of shape (length,) and of dtype `kind`."""
    if not isinstance(value, np.ndarray) or value.dtype != kind or value.shape != (length,):
        found = f"{value.dtype} of shape {value.shape}" if isinstance(value, np.ndarray) else quote(value)
        raise error(f"{key} must be an array of {length} {kind.__name__}, not {found}")


def quote(value: Any) -> str:
    """A value as messages show it: in one short line, with escapes in place of control characters.

    >>> print(quote("\\x1b[31m"), quote(10**5000))
    '\\x1b[31m' an integer of 16610 bits
    """
    if isinstance(value, int) and value.bit_length() > 4 * _LONGEST_INTEGER:
        return f"an integer of {value.bit_length()} bits"
    shown = _REPR.repr(value).replace("\n", " ")
    return shown if len(shown) <= _LONGEST_QUOTE else f"{shown[: _LONGEST_QUOTE - 3]}..."


def listed(names: Collection[str]) -> str:
    """Valid names for a message: all of them, or the first 24 and how many more there are."""
    first = [text for text, _ in zip(names, range(_MOST_CHOICES), strict=False)]
    more = f" and {len(names) - len(first)} more" if len(names) > len(first) else ""
    return ", ".join(quote(name)[1:-1] for name in first) + more


def read_json(path: str | Path, error: type[ValueError]) -> Any:
    """Parse a JSON file, gzip-compressed where the name ends in ``.gz``.

    NaN and infinities are read as Python does; integers of more than 40 digits become floats.

    Raises:
        error: the content is no JSON, has a key twice in one object, or exceeds `MOST_BYTES` or `MOST_NESTED`; the
            message names the file.
        OSError: the file can't be read.
    """

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        made = dict(pairs)
        if len(made) < len(pairs):
            key = next(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
            raise error(f"{path}: {quote(key)} stands in one object twice")
        return made

    data = read_bytes(path, error)
    if not data.strip():
        raise error(f"{path}: not valid JSON: the file is empty")
    if _nesting(data) > MOST_NESTED:
        raise error(f"{path}: lists and objects are nested more than {MOST_NESTED} deep")
    try:
        return json.loads(data.decode(json.detect_encoding(data)), parse_int=_integer, object_pairs_hook=once)
    except (json.JSONDecodeError, UnicodeDecodeError) as problem:
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


def _nesting(data: bytes) -> int:
    """How deep lists and objects are nested."""
    bare = np.frombuffer(_STRING.sub(b"", data), np.uint8)
    brackets = bare[np.isin(bare, np.frombuffer(b"[{]}", np.uint8))]
    steps = np.where((brackets == ord("[")) | (brackets == ord("{")), 1, -1)
    return int(np.cumsum(steps).max(initial=0))


def _integer(digits: str) -> float:
    return int(digits) if len(digits) <= _LONGEST_INTEGER else float(digits)


def _float(value: Any) -> float:
    """The value as a float; infinite if it exceeds all floats, NaN if it is no number."""
    if type(value) is float:
        return value
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
        return math.nan
    try:
        return float(value)
    except OverflowError:  # an int that exceeds all floats
        return math.inf if value > 0 else -math.inf


class _Repr(reprlib.Repr):
    def __init__(self) -> None:
        super().__init__()
        self.maxlevel, self.maxstring, self.maxother = 3, _LONGEST_QUOTE, _LONGEST_QUOTE

    def repr_int(self, x: int, level: int) -> str:
        return repr(x) if x.bit_length() <= 4 * _LONGEST_INTEGER else "..."


_REPR = _Repr()
