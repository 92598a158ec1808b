"""How an experiment is started from the command line, and how what it prints is kept.

What a finished command has printed is in ``experiments/results/NAME.md`` from then on, below the question, the
command, the commit, the machine and the versions. Another place is given with ``--results``, for other settings.
"""

from __future__ import annotations

import io
import platform
import shlex
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import field, make_dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, TextIO, TypeVar

import tyro

from experiments.tables import machine
from placeto.cli.command import log_noted, user_errors

Config = TypeVar("Config")
RESULTS = Path(__file__).parent / "results"
PACKAGES = ("torch", "numpy", "numba", "scipy")
SIMULATED = (
    "Times are simulated: by the default cost model, and dispatched by priority, unless the table says otherwise."
)
NO_CODE = (":(exclude,top)docs", ":(exclude,top)experiments/results")
HELP = "file for what is printed, below the command, date, commit and machine; written at the end"


class Both(io.TextIOBase):
    """Writes to a stream, and keeps what was written."""

    def __init__(self, stream: TextIO) -> None:
        self.stream, self.kept = stream, ""

    def write(self, text: str) -> int:
        """Write and keep."""
        self.kept += text
        return self.stream.write(text)

    def flush(self) -> None:
        """Flush the stream."""
        self.stream.flush()


def command(
    main: Callable[[Config], object], config: type[Config], name: str, description: str, times: str = SIMULATED
) -> None:
    """Run an experiment with its config from the command line, and keep what it printed.

    If Placeto refuses something, the run ends with status 2 and one line, and the earlier results stay. `times` says
    where times come from.
    """
    results = Annotated[Path, tyro.conf.arg(help=HELP)]
    settings = Annotated[config, tyro.conf.arg(name="", help="")]  # type: ignore[valid-type]
    fields: list[Any] = [("settings", settings), ("results", results, field(default=RESULTS / f"{name}.md"))]
    with user_errors(), log_noted():
        arguments: Any = tyro.cli(
            make_dataclass("Arguments", fields), prog=f"python -m experiments.{name}", description=description
        )
        arguments.results.parent.mkdir(parents=True, exist_ok=True)  # refused now rather than after hours
        head = heading(name, description, sys.argv[1:], times)
        begin = time.monotonic()
        with redirect_stdout(Both(sys.stdout)) as printed:
            main(arguments.settings)
        took = f"This run took {time.monotonic() - begin:.0f} s."
        arguments.results.write_text(f"{head}{took}\n\n{printed.kept.rstrip()}\n")


def heading(name: str, description: str, arguments: list[str], times: str) -> str:
    """What stands above the results: question, command, commit, machine, versions."""
    question = " ".join(description.split("\n\n")[0].split())
    versions = ", ".join(f"{package} {version(package)}" for package in PACKAGES)
    return (
        f"# {question}\n\n"
        f"    {shlex.join(['python', '-m', f'experiments.{name}', *arguments])}\n\n"
        f"{machine()}; commit {commit()}; Python {platform.python_version()}, {versions}.\n"
        f"{times}\n"
    )


def commit(folder: Path = RESULTS) -> str:
    """Of the source tree around a folder, "-dirty" behind it if code or data differ; "unknown" outside of git.

    Pages and the results of other commands change no number: they may differ.
    """

    def git(*arguments: str) -> str:
        return subprocess.run(
            ["git", *arguments], cwd=folder, capture_output=True, text=True, check=True
        ).stdout.strip()

    try:
        changed = git("status", "--porcelain", "--untracked-files=no", "--", ":/", ":(exclude,top)*.md", *NO_CODE)
        return git("rev-parse", "--short", "HEAD") + ("-dirty" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
