"""Runs every experiment that RESULTS shows with the present code, and makes its pages: ``make results``.

python -m experiments.reproduce [--plan] [--only NAME ...]

The commands are those that the results files name. First it prints how long each takes on two idle cores. A results
file that was made from a clean tree with the same code stays as it is. Each command keeps its rows below
``runs/COMMIT``, so that nothing of other code is taken over, and so that what was interrupted continues when this is
started again. The picture that a command makes goes to ``docs/results``, and its results file names its digest.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from experiments.command import commit
from experiments.result_pages import RESULTS, ROOT, PageError, Pages, ResultFile, keep_picture, render
from experiments.result_pages import main as make_pages
from experiments.tables import markdown

MINUTES = {
    "architectures": 10,
    "constructive": 45, "cost_models": 5, "demo": 6, "equal_budgets_targets": 60,
    "fidelity_micro_batches": 9, "fuzz": 7, "headline": 75, "held_out_steps": 2,
    "other_tools": 3, "outside_amp": 1, "outside_optima": 2, "outside_sailor": 1, "paper_learning": 400,
    "peers": 7, "torch_plans": 3,
}  # fmt: skip
"""about how long a command takes on two idle cores, where its results file says something else: more, because it ran
beside others, or less, because it was interrupted and the file says how long the last part took"""
STUDIES = {"paper_learning"}
"""What takes about as long as all others together, and runs only if it is named."""
CODE = ("placeto", "graphs", "experiments/*.py", "experiments/data", ":(exclude)*.md")
"""what decides the results"""


@dataclass(frozen=True)
class Reproduce:
    """Run what RESULTS shows."""

    plan: bool = False
    """only say what would run, and how long it takes"""
    only: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME")] = ()
    """of these results files; `paper_learning`, which takes hours, runs only if it is named here"""


def arguments(file: ResultFile, at: str, source: Path) -> list[str]:
    """What follows ``python`` in the command that makes a results file, with rows and results of this commit.

    Args:
        file: Names its command in an indented line, without which it is refused.
        at: The commit of the present code.
        source: The folder with the experiments.
    """
    found = re.search(r"^    python (-m experiments\.(\w+).*)$", file.text, re.MULTILINE)
    if found is None:
        raise PageError(f"{RESULTS}/{file.name}.md names no command `python -m experiments.NAME`")
    words = shlex.split(found[1])
    for option in ("--out", "--results"):
        if option in words:
            at_option = words.index(option)
            del words[at_option : at_option + 2]
    if re.search(r"^    out: Path", (source / f"{found[2]}.py").read_text(), re.MULTILINE):
        words += ["--out", f"runs/{at}/{file.name}"]
    return [*words, "--results", f"{RESULTS}/{file.name}.md"]


def minutes(file: ResultFile) -> float:
    """How long the command takes: as the table says, else as its results file says; 0 where neither does."""
    took = re.search(r"^This run took (\d+) s\.$", file.text, re.MULTILINE)
    return MINUTES.get(file.name, max(1, int(took[1])) / 60 if took else 0)


def current(file: ResultFile, root: Path) -> bool:
    """Whether a results file was made with the present code."""
    if not re.fullmatch("[0-9a-f]+", file.commit):
        return False
    same = ["git", "diff", "--quiet", file.commit, "--", *CODE]
    return subprocess.run(same, cwd=root, capture_output=True, check=False).returncode == 0


def main(config: Reproduce, root: Path = ROOT) -> None:
    """Print what is to run, run it one after the other, and make the pages.

    Raises:
        PageError: a name of `only` is no results file of RESULTS, or the tree has changes, of which no results file
            could name the commit, or a command failed; the others have run.
    """
    files = render(root, "results.md")[1].used
    if unknown := sorted(set(config.only) - files.keys()):
        raise PageError(f"RESULTS shows no {', '.join(unknown)}; it shows {', '.join(sorted(files))}")
    names = config.only or files.keys() - STUDIES
    chosen = {name: file for name, file in sorted(files.items()) if name in names}
    pending = {name: file for name, file in chosen.items() if not current(file, root)}
    lines = [["results file", "minutes", "made with the present code"]]
    lines += [[name, f"{minutes(file):.0f}", "no" if name in pending else "yes"] for name, file in chosen.items()]
    print(markdown(lines))
    print(f"\nTo run: {len(pending)} commands, about {sum(map(minutes, pending.values())) / 60:.1f} hours.", flush=True)
    for name in sorted(files.keys() - chosen.keys() if not config.only else ()):
        print(f"Left out, as it takes about {minutes(files[name]) / 60:.1f} hours: --only {name}", flush=True)
    if config.plan:
        return
    at = commit(root)
    if pending and not re.fullmatch("[0-9a-f]+", at):
        raise PageError(f"the code is of {at}: commit it first, so that the results can name their commit")
    failed = []
    for name, file in pending.items():
        command = arguments(file, at, root / "experiments")
        print(f"\n{name}: python {shlex.join(command)}", flush=True)
        if status := subprocess.run([sys.executable, *command], cwd=root, check=False).returncode:
            failed.append(f"{name} (status {status})")
        elif (picture := root / "runs" / at / name / f"{name}.png").is_file():
            keep_picture(picture, root)
    make_pages(Pages(), root)
    if failed:
        raise PageError(f"commands failed, and their results are those of earlier code: {', '.join(failed)}")


if __name__ == "__main__":
    try:
        main(tyro.cli(Reproduce, prog="python -m experiments.reproduce", description=__doc__))
    except PageError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
