"""Text that is safe to show."""

from __future__ import annotations

from collections.abc import Callable


def printable(text: str) -> str:
    r"""The text with its control characters spelled out, line ends excepted: names in files may hold terminal escapes.

    >>> print(printable("gpu:0 \x1b[31mred"))
    gpu:0 \x1b[31mred
    """
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text)


COMPILING = "compiling, once after an installation or a change of the code: a minute or two"
tells_of_compiling = False
"""Whether the command line is at work, which tells by itself that kernels are compiled."""
on_compiling: list[Callable[[], None]] = []
"""Called, each once, when kernels are about to be compiled: a minute in which nothing else happens."""
