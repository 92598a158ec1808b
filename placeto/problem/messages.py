"""How messages show values and names, and say where something is wrong."""

from __future__ import annotations

import reprlib
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

_LONGEST_QUOTE = 60
_MOST_CHOICES = 24


@contextmanager
def within(error: type[ValueError], what: object, name: Any = None) -> Iterator[None]:
    """Put `what`, and the quoted `name` if there is one, before the message of an `error` that the block raises."""
    try:
        yield
    except error as problem:
        where = what if name is None else f"{what} {quote(name)}"
        raise error(f"{where}: {problem}") from None


def quote(value: Any) -> str:
    """A value as messages show it: in one short line, with escapes in place of control characters.

    >>> print(quote("\\x1b[31m"), quote(10**400))
    '\\x1b[31m' 100000000000000000...0000000000000000000
    """
    shown = _REPR.repr(value).replace("\n", " ")
    return shown if len(shown) <= _LONGEST_QUOTE else f"{shown[: _LONGEST_QUOTE - 3]}..."


def listed(names: Collection[str]) -> str:
    """Valid names for a message: all of them, or the first 24 and how many more there are."""
    first = [text for text, _ in zip(names, range(_MOST_CHOICES), strict=False)]
    more = f" and {len(names) - len(first)} more" if len(names) > len(first) else ""
    return ", ".join(quote(name)[1:-1] for name in first) + more


_REPR = reprlib.Repr()
_REPR.maxlevel, _REPR.maxstring, _REPR.maxother = 3, _LONGEST_QUOTE, _LONGEST_QUOTE
