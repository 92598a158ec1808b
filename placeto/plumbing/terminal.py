"""Text that is safe to print on a terminal, and tables of it."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence


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


def table(rows: Iterable[Sequence[str]], numbers: bool = False) -> str:
    """Return a table as plain text: columns two spaces apart, as wide as they need to be, and printable.

    Args:
        rows: the cells of each row.
        numbers: whether all columns but the first end at the right, as numbers do.

    >>> print(table([["device", "ops"], ["gpu:10", "7"], ["cpu", "12"]], numbers=True))
    device  ops
    gpu:10    7
    cpu      12
    """
    from rich.console import Console  # takes 0.1 s
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 2, 0, 0))
    for row in rows:
        # a row is one line, whatever names hold
        first, *others = (printable(cell).replace("\n", r"\n") for cell in row)
        grid.add_row(Text(first), *(Text(cell, justify="right" if numbers else "left") for cell in others))
    drawn = "".join(segment.text for segment in Console(width=10**6).render(grid))
    return "\n".join(line.rstrip() for line in drawn.splitlines())
