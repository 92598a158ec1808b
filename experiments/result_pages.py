"""Makes RESULTS, the history and a section of README from text with marks: no number of an experiment is typed.

python -m experiments.result_pages [--check]

``experiments/pages/NAME.md`` has the text. A mark ``{{ ... }}`` looks up what a command wrote to
``experiments/results``; marks are expressions of jinja2, and :class:`Marks` has their functions. ``--check`` writes
nothing, and fails where a page differs from what its text and the results files give. Both list what can't be looked
up: numbers that stand in no results file, and results of a tree with changes, each with its reason.
"""

from __future__ import annotations

import hashlib
import posixpath
import re
import shutil
import sys
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path

import jinja2
import tyro

from experiments.tables import markdown

ROOT = Path(__file__).parents[1]
PAGES = {
    "results.md": "experiments/RESULTS.md",
    "history.md": "docs/history.md",
    "release.md": "docs/release-notes.md",
    "gains.md": "README.md",
    "nearness.md": "docs/planning.md",
}
"""text below ``experiments/pages`` -> page that is made of it"""
SECTIONS = ("gains.md", "nearness.md")
"""Texts of which a section of their page is made, from the line that says so to the next heading."""
RESULTS = "experiments/results"
FIGURES = "docs/results"
NUMBER = r"[-+]?\d[\d,]*(?:\.\d+)?(?:e[-+]\d+)?"
MARK = r"\{\{.*?\}\}|\{%.*?%\}|\{#.*?#\}"
TYPED = r"\d+\.\d+|\d[\d,]* (?:%|times\b|of \d)"
"""What in a text looks like the number of an experiment: a decimal, a percentage, so many times, so many of so many."""
NO_NUMBERS = rf"\d+\.\d+\.\d+|(?:Python|torch) \d+\.\d+|{MARK}|```.*?```|`[^`]*`|\]\([^)]*\)|https?:\S+"
HEAD = "<!-- Made by `python -m experiments.result_pages` from experiments/pages/{name}: change the text there. -->\n"


class PageError(ValueError):
    """A mark that finds nothing, a number that is typed, or a page that is not what its text gives."""


@dataclass(frozen=True)
class ResultFile:
    """A results file: its whole text and its tables, each a head and rows of cells."""

    name: str
    text: str
    tables: tuple[tuple[tuple[str, ...], ...], ...]

    @classmethod
    def read(cls, path: Path) -> ResultFile:
        """Read a file and its tables; refuses one that is not there."""
        if not path.is_file():
            raise PageError(f"{path}: no such results file; run its command, or correct its name in experiments/pages")
        text = path.read_text()
        blocks = re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE)
        lines = [[_split(line) for line in block.splitlines()] for block in blocks]
        return cls(path.stem, text, tuple((table[0], *table[2:]) for table in lines))

    @property
    def commit(self) -> str:
        """Of the tree that made it, ``-dirty`` behind it where that had changes; empty where the file has none."""
        found = re.search(r"; commit ([0-9a-f]{7,}(?:-dirty)?)|entered in commit ([0-9a-f]{7,})", self.text)
        return (found[1] or found[2]) if found else ""

    @property
    def date(self) -> str:
        """On which it was made."""
        found = re.search(r"\d{4}-\d\d-\d\d", self.text)
        return found[0] if found else ""

    def find(self, row: str | Sequence[str], column: str | int, table: int | None = None) -> str:
        """A cell: of the one row that begins with these cells, below a head or in the column of that number from 0.

        `table` counts from 1; without it, the cell must be the only one of its kind in all tables.
        """
        start = (row,) if isinstance(row, str) else tuple(row)
        found = [
            line[_column(head, column)]
            for head, *lines in (self.tables if table is None else self.tables[table - 1 : table])
            if _column(head, column) >= 0
            for line in lines
            if line[: len(start)] == start
        ]
        if len(found) != 1:
            where = "any table" if table is None else f"table {table}"
            raise PageError(
                f"{self.name}.md has {len(found) or 'no'} cells in row {', '.join(start)!r}, column {column!r} of "
                f"{where}: name one that is there once"
            )
        return found[0]


def _split(line: str) -> tuple[str, ...]:
    cells = re.split(r"(?<!\\)\|", line.strip().removeprefix("|").removesuffix("|"))  # a cell may have an escaped bar
    return tuple(cell.strip() for cell in cells)


def _column(head: Sequence[str], column: str | int) -> int:
    """Where a column is, -1 if it is not there."""
    if isinstance(column, int):
        return column if column < len(head) else -1
    return head.index(column) if column in head else -1


def plain(text: str) -> str:
    """A cell as pages write it: a space before a per cent sign, and no powers of ten."""
    text = re.sub(r"\d\.\d+e[+]\d+", lambda found: f"{float(found[0]):,.0f}", text)
    return re.sub(r"(?<=\d)%", " %", text)


@dataclass
class Marks:
    """The functions of marks on one page; they note the results files used and what could not be looked up."""

    root: Path
    page: str
    used: dict[str, ResultFile] = field(default_factory=dict)
    exceptions: list[str] = field(default_factory=list)
    accepted: set[str] = field(default_factory=set)

    def file(self, name: str) -> ResultFile:
        """The results file of a name."""
        if name not in self.used:
            self.used[name] = ResultFile.read(self.root / RESULTS / f"{name}.md")
        return self.used[name]

    def link(self, path: str) -> str:
        """A path of the source tree, as the page links it."""
        return posixpath.relpath(path, posixpath.dirname(self.page))

    def cell(self, name: str, row: str | Sequence[str], column: str | int, table: int | None = None) -> str:
        """A cell of a results file, as :meth:`ResultFile.find` finds it."""
        return plain(self.file(name).find(row, column, table))

    def number(self, name: str, row: str | Sequence[str], column: str | int, table: int | None = None) -> float:
        """The first number of a cell."""
        text = self.file(name).find(row, column, table)
        if found := re.search(NUMBER, text):
            return float(found[0].replace(",", ""))
        raise PageError(f"{name}.md: cell {text!r} in row {row!r}, column {column!r} has no number")

    def table(
        self, name: str, columns: Mapping[str, str | int], rows: Mapping[str, str | Sequence[str]], table: int = 1
    ) -> str:
        """Some rows and columns of a table: what each is called on the page -> in the file; the first names the rows.

        The first of `columns` is only the head above the names of the rows.
        """
        _, *others = columns
        lines = [list(columns)]
        for shown, row in rows.items():
            lines.append([shown, *(self.cell(name, row, columns[column], table) for column in others)])
        return markdown(lines)

    def said(self, name: str, pattern: str) -> str:
        """The first group of a pattern in what a results file says outside of tables."""
        if found := re.search(pattern, self.file(name).text):
            return plain(found[1])
        raise PageError(f"{name}.md says nothing like {pattern!r}")

    def made(self, name: str, full: str = "full table") -> str:
        """The command of a results file, with its date, its commit and a link to the file."""
        file = self.file(name)
        command = re.search(r"(?:python -m experiments\.|placeto )\w+", file.text)
        commit = file.commit.replace("-dirty", " with changes")
        link = self.link(f"{RESULTS}/{name}.md")
        return f"`{command[0] if command else name}`, {file.date}, commit {commit} ([{full}]({link}))"

    def changed(self, name: str, why: str) -> str:
        """Accepts a results file of a tree with changes, and notes why."""
        self.accepted.add(name)
        self.exceptions.append(f"{self.page}: {name}.md is of commit {self.file(name).commit}: {why}")
        return ""

    def figure(self, name: str, says: str = "") -> str:
        """A picture that a command made: in RESULTS the one that the command made with its results file."""
        path = self.root / FIGURES / f"{name}.png"
        if not path.is_file():
            raise PageError(
                f"{FIGURES}/{name}.png is not there; python -m experiments.reproduce --only {name} makes it"
            )
        if self.page == PAGES["results.md"] and picture_line(path) not in self.file(name).text:
            raise PageError(
                f"{FIGURES}/{name}.png is not the picture that was made with {RESULTS}/{name}.md: run "
                f"python -m experiments.reproduce --only {name}, which makes both"
            )
        return f"![{says or name}]({self.link(f'{FIGURES}/{name}.png')})"

    def typed(self, text: str, why: str) -> str:
        """A number that stands in no results file, and where it comes from."""
        self.exceptions.append(f"{self.page}: {text}: {why}")
        return text


def picture_line(path: Path) -> str:
    """The line of a results file that says which picture was made with it."""
    return f"Picture: {FIGURES}/{path.name}, SHA-256 {hashlib.sha256(path.read_bytes()).hexdigest()[:16]}.\n"


def keep_picture(made: Path, root: Path) -> None:
    """Copy a picture to where pages show it, and note it in the results file of its name."""
    kept, results = root / FIGURES / made.name, root / RESULTS / f"{made.stem}.md"
    kept.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(made, kept)
    results.write_text(f"{results.read_text()}\n{picture_line(kept)}")


def render(root: Path, name: str) -> tuple[str, Marks]:
    """A page from its text below a source tree, and what its marks have used."""
    text = (root / "experiments" / "pages" / name).read_text()
    for line in re.sub(NO_NUMBERS, "", text, flags=re.DOTALL).splitlines():
        if found := re.search(TYPED, line):
            raise PageError(
                f"experiments/pages/{name}: {found[0]!r} is typed in {line.strip()!r}: look it up with a mark, or "
                "say with typed(...) where it comes from"
            )
    marks = Marks(root, PAGES[name])
    environment = jinja2.Environment(undefined=jinja2.StrictUndefined, keep_trailing_newline=True, trim_blocks=True)
    functions = {each: getattr(marks, each) for each in dir(marks) if not each.startswith("_")}
    page = environment.from_string(text, globals=functions | {"less": less}).render()
    for file in marks.used.values():
        if file.commit.endswith("-dirty") and file.name not in marks.accepted:
            raise PageError(
                f"experiments/pages/{name}: {file.name}.md is of commit {file.commit}: run its command again from a "
                "clean tree, or say with changed(...) why it stays"
            )
    return f"{HEAD.format(name=name)}\n{wrapped(page)}", marks


def with_section(path: Path, made: str) -> str:
    """A page in which a section is replaced by what was made; refuses a page without the line that says so."""
    there, line = path.read_text() if path.is_file() else "", made.partition("\n")[0] + "\n"
    before, found, after = there.partition(line)
    if not found:
        raise PageError(f"{path}: has no line {line.strip()!r}: put it below the heading of the section")
    _, heading, rest = after.partition("\n## ")
    return before + made + heading + rest


def wrapped(text: str) -> str:
    """Paragraphs and items of lists broken into lines of 120 characters; tables, headings and pictures as they are."""
    blocks = []
    for block in re.split(r"\n{2,}", text.strip()):
        if not block.startswith(("|", "#", "!", "```")):
            block = "\n".join(_filled(item) for item in re.split(r"\n(?=- )", block))
        blocks.append(block)
    return "\n\n".join(blocks) + "\n"


def _filled(item: str) -> str:
    indent = "  " if item.startswith("- ") else ""
    text = " ".join(item.split()).replace(" %", "\0%")  # a number and its unit stay in one line
    filled = textwrap.fill(text, 120, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
    return filled.replace("\0", " ")


def less(shorter: float, longer: float) -> float:
    """By how many per cent the first is less than the second."""
    return 100.0 * (1.0 - shorter / longer)


@dataclass(frozen=True)
class Pages:
    """Make the pages of results, or check them."""

    check: bool = False
    """write nothing, and fail where a page is not what its text and the results files give"""


def main(config: Pages, root: Path = ROOT) -> None:
    """Write or check all pages, and print what could not be looked up; refuses as :class:`PageError`."""
    made = {page: render(root, name) for name, page in PAGES.items()}
    for name, page in PAGES.items():
        path, text = root / page, made[page][0]
        if name in SECTIONS:
            text = with_section(path, text)
        if not config.check:
            path.write_text(text)
        elif not path.is_file() or path.read_text() != text:
            there = path.read_text().splitlines() if path.is_file() else []
            pairs = enumerate(zip_longest(there, text.splitlines()), 1)
            line = next((number for number, (found, should) in pairs if found != should), len(there))
            raise PageError(f"{page}: line {line} is not what its text and the results files give: run `make pages`")
    for page, (_, marks) in made.items():
        print(f"{page}: {len(marks.used)} results files")
    print("Not looked up:", *(f"- {line}" for _, marks in made.values() for line in marks.exceptions), sep="\n")


if __name__ == "__main__":
    try:
        main(tyro.cli(Pages, prog="python -m experiments.result_pages", description=__doc__))
    except PageError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
