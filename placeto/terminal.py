"""Text that is safe to print on a terminal."""

from __future__ import annotations

from collections.abc import Callable


def drawable(text: str, longest: int = 60) -> str:
    r"""The text as matplotlib is to be given it, so that it is drawn as it is written: a dollar begins no formula.

    Of a text of more than `longest` characters the middle is left out, so that room remains for the picture.

    >>> print(drawable(r"$\frac{$"))
    \$\frac{\$
    """
    shown = printable(text)
    if len(shown) > longest:
        shown = f"{shown[: longest // 2]}...{shown[3 - longest // 2 :]}"
    return shown.replace("$", r"\$")


def printable(text: str) -> str:
    r"""The text with its control characters spelled out, line ends excepted: names in files may hold terminal escapes.

    >>> print(printable("gpu:0 \x1b[31mred"))
    gpu:0 \x1b[31mred
    """
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text)


COMPILING = (
    "compiling parts of the simulator, each when it is used for the first time after an installation or a change of "
    "the code: this can take a minute"
)
tells_of_compiling = False
"""Whether a command runs, which itself says that kernels are compiled."""
on_compiling: list[Callable[[], None]] = []
"""Called, each once, when kernels are about to be compiled: a minute in which nothing else happens."""
