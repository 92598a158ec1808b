"""What the tables of the experiments are made of."""

from __future__ import annotations

import platform
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from placeto.evaluation.summary import Row
from placeto.formats.gantt import save_figure
from placeto.plumbing.cores import cores
from placeto.problem.files import write_text

Table = Sequence[Sequence[str]]


def by_columns(rows: Sequence[Row], *columns: str) -> dict[tuple[str, ...], list[Row]]:
    """Rows by the values of some columns, in the order in which they first appear."""
    found: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        found.setdefault(tuple(row[column] for column in columns), []).append(row)
    return found


def mean_and_spread(values: Sequence[float], form: str) -> str:
    """Mean and, of several values, their standard deviation."""
    spread = f" ± {np.std(values, ddof=1):{form}}" if len(values) > 1 else ""
    return f"{np.mean(values):{form}}{spread}"


def markdown(table: Table, words: int = 1) -> str:
    """Lines of a markdown table: a head, then rows; the first `words` columns hold words, the others numbers."""
    head, *rows = table
    rule = ["---"] * words + ["---:"] * (len(head) - words)
    return "\n".join(f"| {' | '.join(line)} |" for line in (head, rule, *rows))


def machine() -> str:
    """Cores and date, for the line above a table."""
    return f"{len(cores())} cores, {platform.machine()}, {time.strftime('%F')}"


def publish(out: Path, name: str, paragraphs: Sequence[str], figure: Figure | None) -> None:
    """Print paragraphs; write them to ``NAME.md`` in a folder, and the picture, if there is one, to ``NAME.png``."""
    text = "\n\n".join(paragraphs) + "\n"
    out.mkdir(parents=True, exist_ok=True)
    write_text(text, out / f"{name}.md")
    if figure is not None:
        save_figure(figure, out / f"{name}.png")
    print(text)
