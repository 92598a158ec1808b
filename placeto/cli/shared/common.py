"""Clusters by their names, and outputs that several commands share."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from placeto.errors import UsageError
from placeto.plumbing.terminal import printable
from placeto.problem.units import format_bytes, format_rate, format_us

if TYPE_CHECKING:
    from placeto.problem.cluster import Cluster
    from placeto.problem.problem import PlacementProblem
    from placeto.simulator.schedule import Schedule


def find_cluster(name: str, dispatch: str | None = None) -> Cluster:
    """Return the cluster with this name, or in this file, with another dispatch if one is given.

    Raises:
        ClusterError: there is no such preset or file, or the file holds no cluster.
    """
    from placeto.problem.cluster import load_cluster

    cluster = load_cluster(name)
    note_links(name)
    return cluster if dispatch is None else replace(cluster, dispatch=dispatch)


def find_clusters(option: str, names: Sequence[str], dispatch: str | None = None) -> list[Cluster]:
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


def note_memory(what: str, schedule: Schedule) -> None:
    """Print a note on the memory that is missing, if `what` doesn't fit."""
    if missing := missing_memory(schedule):
        note(f"{what} doesn't fit in the memory of {schedule.problem.cluster.name}: {missing} too much")


def note_unmeasured(problem: PlacementProblem) -> None:
    """Print a note on the devices on which no ops were measured, if there are some."""
    if problem.unmeasured:
        boards = ", ".join(problem.unmeasured)
        note(f"no ops were measured on {boards}: their times are estimates; give your own with --costs")


def say_left_out(left_out: Mapping[int, str]) -> None:
    """Print numbers of micro-batches that a step can't be split into, if there are some, and why not into the first."""
    if left_out:
        say(f"not tried in {', '.join(map(str, left_out))} micro-batches: {next(iter(left_out.values()))}")


def say(text: str) -> None:
    """Print text on stdout."""
    print(printable(text))


def note(sentence: str) -> None:
    """Print a note on stderr, in one line."""
    print(f"note: {printable(sentence)}", file=sys.stderr)
