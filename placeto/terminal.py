"""Text that is safe to print on a terminal."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable


def drawable(text: str, longest: int = 60) -> str:
    r"""Return a text for matplotlib, with control characters spelled out, and dollars escaped: none begins a formula.

    If the text has more than `longest` characters, its middle is left out, so that room remains for the picture.

    >>> print(drawable(r"$\frac{$"))
    \$\frac{\$
    """
    shown = printable(text)
    if len(shown) > longest:
        shown = f"{shown[: longest // 2]}...{shown[3 - longest // 2 :]}"
    return shown.replace("$", r"\$")


def printable(text: str) -> str:
    r"""Return the text with control characters and marks of direction spelled out, except line ends.

    Names in files may hold escape codes.

    >>> print(printable("gpu:0 \x1b[31mred"))
    gpu:0 \x1b[31mred
    """
    shown = (c.isprintable() or c == "\n" or unicodedata.category(c) == "Zs" for c in text)  # Zs: other spaces
    return "".join(c if show else c.encode("unicode_escape").decode() for c, show in zip(text, shown, strict=True))


COMPILING = (
    "compiling parts of the simulator, each when it is used for the first time after an installation or a change of "
    "the code: this can take a minute"
)
tells_of_compiling = False
"""Whether a command is running that itself prints a note when kernels are compiled."""
on_compiling: list[Callable[[], None]] = []
"""Functions that are called, each once, before kernels are compiled, which can take a minute."""
