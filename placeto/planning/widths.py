"""The step in tensor-parallel groups of several widths, each in several numbers of micro-batches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from placeto.errors import CaptureError, ClusterError
from placeto.heuristics.pipelines.plans import least_us
from placeto.planning.numbers import Numbers, Setting
from placeto.problem.cluster import Cluster
from placeto.problem.problem import PlacementProblem

WIDTHS = 2, 4, 8
"""Numbers of boards of the tensor-parallel groups that are tried."""


def widths_on(cluster: Cluster) -> tuple[int, ...]:
    """Return the widths of tensor-parallel groups for which a host has enough boards."""
    most = max(Counter(cluster.hosts[board] for board in cluster.computing).values(), default=1)
    return tuple(width for width in WIDTHS if width <= most)


def by_setting(numbers: Numbers, counts: Iterable[int]) -> dict[Setting, PlacementProblem]:
    """Return the step in those of some numbers of micro-batches in which it can be captured; see `Numbers.wanted`."""
    return {problem.setting: problem for _, problem in numbers.wanted(counts)}


def one_each(cluster: Cluster, counts: Iterable[int]) -> tuple[int, ...]:
    """Return the number of micro-batches that gives each device but CPUs one, unless `counts` has a multiple of it."""
    computing = len(cluster.computing)
    return () if computing < 2 or any(count % computing == 0 for count in counts) else (computing,)


def in_widths(
    widths: Mapping[int, Numbers], counts: Iterable[int], best_us: float
) -> tuple[dict[Setting, PlacementProblem], str]:
    """Return the step in tensor-parallel groups, by width and number of micro-batches, and why a width is left out.

    In more micro-batches, ops are smaller and take longer together. So if the work alone, divided between all groups,
    takes longer than the best way so far, no larger number of micro-batches is captured.
    """
    found, refusal = dict[Setting, PlacementProblem](), ""
    for numbers in widths.values():
        try:
            for _, problem in numbers.wanted(sorted(counts)):
                found[problem.setting] = problem
                if least_us(problem, problem.cluster.computing) >= best_us:
                    break
        except (CaptureError, ClusterError) as refused:
            refusal = refusal or str(refused)
    return found, refusal
