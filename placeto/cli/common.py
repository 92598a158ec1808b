"""Options, checks and outputs that several commands share."""

from __future__ import annotations

import math
import os
import re
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
from tyro.conf import Positional, arg
from tyro.constructors import PrimitiveConstructorSpec

from placeto.problem.json_files import check_json_name
from placeto.problem.messages import quote
from placeto.problem.units import format_bytes, format_rate, format_us
from placeto.terminal import printable

if TYPE_CHECKING:
    from placeto.problem.cluster import Cluster
    from placeto.simulator.schedule import Schedule

GraphArguments = Annotated[Positional[tuple[str, ...]], arg(metavar="GRAPH ...")]
GraphList = Annotated[tuple[str, ...], arg(metavar="GRAPH ...")]
OptionalText = Annotated[str | None, arg(metavar="NAME")]
OptionalPath = Annotated[Path | None, arg(metavar="PATH")]
OptionalInt = Annotated[
    int | None,
    PrimitiveConstructorSpec(
        nargs=1,
        metavar="INT",
        instance_from_str=lambda words: whole_number(words[0]),
        is_instance=lambda value: value is None or isinstance(value, int),
        str_from_instance=lambda value: [str(value)],
    ),
]
OptionalFloat = Annotated[float | None, arg(metavar="FLOAT")]
DispatchOption = Annotated[
    Literal["fifo", "list", "priority", "earlier-0.02", "earlier-0.05", "earlier-0.2", "1f1b"] | None,
    arg(metavar="NAME"),
]
CostsText = Annotated[str, arg(metavar="NAME|FILE")]
OutputPath = Annotated[Path | None, arg(name="out", aliases=["-o"], metavar="PATH")]


class UsageError(ValueError):
    """Arguments that don't make sense; the message says which and what would be valid."""


def whole_number(text: str) -> int:
    """Parse a whole number, which may be written as 1e3 or 1_000.

    Raises:
        ValueError: the text is no whole number.
    """
    try:
        return int(text)
    except ValueError:
        if re.fullmatch(r"[+-]?\d+(\.\d+)?e\+?\d{1,2}", text, re.IGNORECASE) and float(text).is_integer():
            return int(float(text))
        raise ValueError(f"{text!r} is no whole number") from None


@dataclass(frozen=True)
class BudgetOptions:
    """The learned placer and the budget, as several commands take them."""

    checkpoint: OptionalPath = None
    """learned placer: a checkpoint or run directory of `placeto train`; pretrained is the one in the package"""
    simulations: OptionalInt = None
    """budget: how many placements the placer may simulate; 0 asks placeto for one pass of its policy, without search"""
    seconds: OptionalFloat = None
    """budget: how many seconds the placer may take, the grouping of ops included; what has begun is finished"""

    def check(self) -> None:
        """Refuse a negative number of simulations, and seconds that are no positive, finite number.

        Raises:
            UsageError: one of the two is invalid.
        """
        check_whole("--simulations", self.simulations)
        check_positive("--seconds", self.seconds)

    def __str__(self) -> str:
        parts = [f"{self.simulations} simulations"] if self.simulations is not None else []
        parts += [f"{self.seconds:g} seconds"] if self.seconds is not None else []
        return " or ".join(parts) if parts else "no budget"


Budget = Annotated[BudgetOptions, arg(name="")]


def find_cluster(name: str, dispatch: str | None) -> Cluster:
    """Return the cluster with this name, or in this file, with another dispatch if one is given.

    Raises:
        ClusterError: there is no such preset or file, or the file holds no cluster.
    """
    from placeto.problem.cluster import load_cluster

    cluster = load_cluster(name)
    note_links(name)
    return cluster if dispatch is None else replace(cluster, dispatch=dispatch)


def find_clusters(option: str, names: Sequence[str], dispatch: str | None) -> list[Cluster]:
    """Return the clusters of an option, each with another dispatch if one is given.

    Raises:
        ClusterError: there is no such preset or file, or a file holds no cluster.
        UsageError: no cluster is given, or two have the same name.
    """
    clusters = [find_cluster(name, dispatch) for name in names]
    if not clusters:
        raise UsageError(f"{option} names no cluster: give some from `placeto list clusters`, as 2xv100,8xh100")
    name, count = Counter(cluster.name for cluster in clusters).most_common(1)[0]
    if count > 1:
        raise UsageError(f"{option} {','.join(names)}: {count} clusters are called {name!r}; their names must differ")
    return clusters


@cache
def note_links(name: str) -> None:
    """Print a note, once, on the links of a cluster such as 4xrtx3090, which are assumed as it is no preset."""
    from placeto.problem.cluster import CLUSTERS, of_kinds

    if name not in CLUSTERS and (made := of_kinds(name)) is not None:
        note(made[1])


def check_output(option: str, path: Path | None, json: bool = False) -> None:
    """Refuse an output that can't be written, or not under this name, before any work is done.

    Raises:
        UsageError: the folder doesn't exist or can't be written to, the path is a folder, or `json` is set and the name
            ends in neither .json nor .json.gz.
    """
    if path is None:
        return
    if path.is_dir():
        raise UsageError(f"{option} {path}: is a directory, give the name of a file in it")
    if not path.absolute().parent.is_dir():
        raise UsageError(f"{option} {path}: the directory {path.parent} doesn't exist")
    target = Path(os.path.realpath(path))
    if not os.access(target if target.exists() and not target.is_file() else target.parent, os.W_OK):
        raise UsageError(f"{option} {path}: can't be written, permission is denied")
    if json:
        check_json_name(path, UsageError, f"{option} ")


def check_apart(paths: Mapping[str, Path | None]) -> None:
    """Refuse one file for two outputs.

    Args:
        paths: option -> the file that is written for it, if any is.

    Raises:
        UsageError: two options name the same file.
    """
    options: dict[str, str] = {}
    for option, path in paths.items():
        if path is not None and (other := options.setdefault(os.path.realpath(path), option)) != option:
            raise UsageError(f"{other} and {option}: both would be written to {path}; give two files")


def check_picture(option: str, path: Path | None) -> None:
    """Refuse a picture that can't be written, or not under this name, before any work is done.

    Raises:
        UsageError: the picture can't be written.
        PlotError: its name doesn't end as that of a picture.
    """
    check_output(option, path)
    if path is not None:
        from placeto.formats.gantt import check_suffix

        check_suffix(path)


def check_positive(option: str, value: float | None) -> None:
    """Refuse a number that isn't above 0 and finite.

    Raises:
        UsageError: the value is such a number.
    """
    if value is not None and not 0 < value < math.inf:
        raise UsageError(f"{option} must be above 0 and finite, not {value}")


def check_whole(option: str, value: int | None) -> None:
    """Refuse a seed, or a number of simulations, that isn't from 0 to 2^63 - 1.

    Raises:
        UsageError: the value is outside of this range.
    """
    if value is not None and not 0 <= value < 2**63:
        bound = "at least 0" if value < 0 else "below 2^63"
        raise UsageError(f"{option} must be {bound}, not {quote(value)}")


def describe(schedule: Schedule) -> str:
    """Return makespan, transfers and whether the placement fits, as a few lines of text."""
    from placeto.evaluation.summary import ratio

    problem = schedule.problem
    bound = ratio(schedule.makespan_us, problem.lower_bound_us)
    answers = problem.graph.mode == "inference" and schedule.makespan_us > 0.0
    rate = f", {format_rate(1e6 / schedule.makespan_us)} batches a second" if answers else ""
    lines = [
        f"makespan     {format_us(schedule.makespan_us)} ({schedule.makespan_us:.3f} us){rate}",
        f"             {_of_one_device(schedule)}, {bound:.3f} times the lower bound",
        f"transfers    {schedule.num_sends}",
        f"fits         {'no' if missing_memory(schedule) else 'yes'}",
    ]
    return "\n".join(lines)


def _of_one_device(schedule: Schedule) -> str:
    """Return the makespan's ratio to that of the fastest device that holds the whole graph, as a phrase."""
    from placeto.evaluation.summary import ratio
    from placeto.simulator.single_device import best_single

    problem, single = schedule.problem, best_single(schedule.problem)
    if single is None:
        return "no single device holds the graph"
    relative = f"{ratio(schedule.makespan_us, single.makespan_us):.4f} of the best single device"
    if (count := int(problem.graph.micro_batches.max(initial=0)) + 1) > 1:
        relative += f" in {count} micro-batches"
    if single.makespan_us <= problem.single_device_us:
        return relative
    return f"{relative} that holds the graph ({problem.cluster.device_names[single.placement[0]]})"


def missing_memory(schedule: Schedule) -> str:
    """Return how much memory which devices lack, as a phrase; empty if the placement fits."""
    over = schedule.peak_memory - schedule.problem.cluster.memory
    devices = schedule.problem.cluster.devices
    return ", ".join(f"{format_bytes(int(over[d]))} on {devices[d].name}" for d in np.flatnonzero(over > 0))


def say(text: str) -> None:
    """Print text on stdout."""
    print(printable(text))


def note(sentence: str) -> None:
    """Print a note on stderr, in one line."""
    print(f"note: {printable(sentence)}", file=sys.stderr)
