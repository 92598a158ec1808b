"""The page of HTML, which is made from one template and all parts of the report."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from placeto.formats.report import axis, chart, grid, modules, tables, words
from placeto.formats.report import memory_pictures as memory
from placeto.plumbing.terminal import printable
from placeto.problem.files import write_text
from placeto.problem.units import format_bytes, format_us
from placeto.simulator.readings.critical_path import critical_path

if TYPE_CHECKING:
    from placeto.simulator.result import PlacementResult
    from placeto.simulator.schedule import Schedule

_FOLDER = Path(__file__).parent
_SIZE = re.compile(r"\b[a-z] [\d.]+ \w*B\b")  # "w 1.20 GB" in a cell
_WAYS = (
    "Ways to run the step, best first. M: micro-batches. Fullest device: weights (w), gradients (g), optimizer (o), "
    "activations (a), received from other devices (r)"
)


@dataclass(frozen=True)
class Ways:
    """Ways to run the step, as `placeto plan` finds them. The report is on the first of them."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    advice: str  # which to use, in a sentence
    note: str = ""  # how the report differs from the table


def save_report(schedule: Schedule, path: str | Path, title: str) -> None:
    """Write the page of a schedule to a file, whole or not at all; see `report_page`.

    Raises:
        OSError: the file can't be written.
    """
    write_text(report_page(schedule, title), path)


def report_page(
    schedule: Schedule,
    title: str,
    placer: str = "",
    rivals: Mapping[str, PlacementResult] | None = None,
    whole_modules: bool = False,
    ways: Ways | None = None,
) -> str:
    """Return the report on a schedule as HTML, with its style, script and data inside.

    Args:
        schedule: the schedule that the report is on.
        title: what to call the model.
        placer: the name of the placer that found the placement, if that is known.
        rivals: name of another placer -> what it found.
        whole_modules: whether all placers keep each block of the model on one device.
        ways: the ways to run the step, if the placement is the first of them.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(_FOLDER),
        autoescape=True,
        finalize=lambda value: printable(value) if type(value) is str else value,  # names in files may hold anything
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"bytes": format_bytes, "us": format_us}
    path, cluster = critical_path(schedule), schedule.problem.cluster
    return environment.get_template("page.html").render(
        title=title,
        cluster=cluster,
        schedule=schedule,
        placer=placer,
        paragraphs=_paragraphs(words.summary(schedule, path, title, placer), ways),
        rivals=_compared(schedule, placer, rivals or {}, whole_modules),
        ways=None if ways is None else _ways(ways),
        note="" if ways is None else ways.note,
        grid=grid.step_grid(schedule),
        kinds=grid.KINDS,
        marks=axis.time_marks,
        parts={part: share for part, share in path.shares.items() if share >= 0.001},
        data=chart.chart_data(schedule, path),
        pictures=memory.memory_pictures(schedule),
        size=(memory.WIDTH, memory.HEIGHT),
        tree=modules.module_tree(schedule),
        devices=tables.device_table(schedule),
        details=[tables.cut_table(schedule), tables.link_table(schedule)],
        path=[tables.path_table(schedule, path), tables.step_table(schedule, path)],
        style=(_FOLDER / "page.css").read_text(encoding="utf-8"),
        script=(_FOLDER / "page.js").read_text(encoding="utf-8"),
    )


def _paragraphs(paragraphs: list[tuple[str, str]], ways: Ways | None) -> list[tuple[str, str]]:
    """Return the paragraphs of the page, each with its heading.

    With ways to run the step, the advice on data parallelism is left out: replicas are among the ways, on the same
    batch.
    """
    if ways is None:
        return paragraphs
    return [("Plan", ways.advice), *(part for part in paragraphs if part[0] != words.INSTEAD)]


def _ways(ways: Ways) -> tables.Table:
    """Return the table of the ways; the first row is that of the report.

    A column whose cells begin with a digit in each row is of numbers. Lines break between the sizes of a cell, such as
    "w 1.20 GB g 3.40 GB", not within a size.
    """
    numbers = [all(row[column][:1].isdigit() for row in ways.rows) for column in range(len(ways.columns))]
    texts = tuple(column for column, number in enumerate(numbers) if not number)
    rows: list[tuple[str, ...]] = [tuple(_SIZE.sub(_unbroken, cell) for cell in row) for row in ways.rows]
    rows[0] = (f"{rows[0][0]} (this report)", *rows[0][1:])
    return tables.Table(_WAYS, tuple(ways.columns), rows, texts)


def _unbroken(match: re.Match[str]) -> str:
    return match[0].replace(" ", "\N{NO-BREAK SPACE}")


def _compared(schedule: Schedule, placer: str, rivals: Mapping[str, PlacementResult], whole: bool) -> tables.Table:
    step_us = schedule.makespan_us or 1.0
    rows = [(not schedule.fits, schedule.makespan_us, f"{placer or 'this'} (this report)", "1.00", "", "")]
    rows += [
        (not r.fits, r.makespan_us, name, f"{r.makespan_us / step_us:.2f}", f"{r.simulations:,}", f"{r.seconds:.2f}")
        for name, r in rivals.items()
    ]
    columns = ("placer", "step", "times this", "fits", "simulations", "seconds")
    cells = [
        (name, format_us(us), times, "no" if unfit else "yes", *spent)
        for unfit, us, name, times, *spent in sorted(rows, key=lambda row: row[:2])
    ]
    caption = f"Other placers on the same model and cluster{', in whole modules as well' if whole else ''}"
    return tables.Table(caption, columns, cells, (0, 3))
