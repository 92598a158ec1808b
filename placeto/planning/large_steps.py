"""The ways to run a large step: its pipelines are searched by their chunks alone, in the widths that look best.

A step of 80 layers in 64 micro-batches has 650,000 ops. To simulate it once takes half a second, and to try a plan as
those of smaller steps are tried takes dozens of simulations.

Legend: M micro-batches.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np

from placeto.errors import CaptureError, ClusterError
from placeto.heuristics.pipelines.block_costs import block_costs
from placeto.heuristics.pipelines.plans import least_us
from placeto.planning.numbers import Numbers, Setting, is_large
from placeto.planning.planned_steps import PlannedStep
from placeto.planning.runnable import keeping
from placeto.planning.short_memory import ways_that_fit
from placeto.planning.single_ways import sharded
from placeto.planning.widths import one_each
from placeto.problem.problem import PlacementProblem
from placeto.problem.step.plan import Tool

_WIDTHS = 2
"""A large step is tried in so many widths: those in which replicas would take the least time."""


class LargeStep(NamedTuple):
    """Ways to run a large step, and what else is to be tried."""

    ways: list[PlannedStep]  # fully sharded replicas on all devices, and what the search by chunks finds
    problems: dict[Setting, PlacementProblem]  # the steps of these ways
    counts: tuple[int, ...]  # the other numbers of micro-batches that are to be tried
    refusal: str  # why a width is left out; "" if none is


def plan_large(
    numbers: Numbers,
    groups: Mapping[int, Numbers],
    counts: Iterable[int],
    batch: int,
    runnable_by: Tool | None,
    refusals: list[str],
) -> LargeStep:
    """Plan a step in the largest number of micro-batches in which it is large and can be captured.

    If there are more devices than the largest of three `counts` or more, as many micro-batches as devices also count.
    There are no ways, and all `counts` are to be tried, if the step isn't large in any number, has no blocks that can
    be recomputed, or fits in no way. Otherwise all smaller numbers in which it is large are left out.

    Args:
        numbers: the step in numbers of micro-batches.
        groups: the same in tensor-parallel groups, by their width.
        counts: numbers of micro-batches to try.
        batch: number of samples of a step.
        runnable_by: the tool that is to run the ways; None = any.
        refusals: reasons why the tool can't run a plan are appended.
    """
    counts = tuple(dict.fromkeys(counts))
    next(numbers.wanted(counts))  # a number that was asked for comes first: it may not divide the batch
    first, least = next(numbers.wanted(sorted(counts)))
    more = [count for count in one_each(least.cluster, counts) if count > max(counts) and len(counts) > 2]
    large = [count for count in (*counts, *more) if is_large(least, count)]
    as_others = LargeStep([], {}, counts, "")
    if not large or block_costs(least) is None:
        return as_others
    ways, problems, best_us = list[PlannedStep](), dict[Setting, PlacementProblem](), math.inf
    for number in sorted(large, reverse=True):
        widths, refusal = _likely(numbers, groups, first, number)
        for width, smallest in widths:
            if may_be_faster(smallest, number, best_us):
                try:
                    problem = (numbers if width == 1 else groups[width])(number)
                except CaptureError:  # the number doesn't divide the batch
                    continue
                problems[problem.setting] = problem
                ways += _ways_of(problem, batch, runnable_by, refusals)
                best_us = min((way.step_us for way in ways if way.fits), default=math.inf)
        if problems:
            break
    if best_us == math.inf:
        return as_others
    left = (count for count in counts if count not in large)
    others = tuple(count for count in left if count == first or may_be_faster(least, count, best_us))
    return LargeStep(ways, problems, others, refusal)


def _likely(
    numbers: Numbers, groups: Mapping[int, Numbers], first: int, count: int
) -> tuple[list[tuple[int, PlacementProblem]], str]:
    """Return the widths in which M micro-batches are likely to take the least time, with the step in a few.

    Widths are tried from the narrowest on, until one takes longer than the one before. The second result is why a width
    is left out that can't be captured; "" if none is.

    Args:
        numbers: the step in numbers of micro-batches.
        groups: the same in tensor-parallel groups, by their width.
        first: the number of micro-batches in which it is captured.
        count: M.
    """
    found, before_us, refusal = list[tuple[float, int, PlacementProblem]](), math.inf, ""
    for width, own in sorted({1: numbers, **groups}.items()):
        try:
            problem = own(first)
        except (CaptureError, ClusterError) as refused:
            refusal = refusal or str(refused)
            continue
        found.append((us := _replicas_us(problem, count), width, problem))
        if us > before_us:
            break
        before_us = us
    best = sorted((each for each in found if each[0] < math.inf), key=lambda each: each[0])[:_WIDTHS]
    return [(width, problem) for _, width, problem in best], refusal


def _ways_of(problem: PlacementProblem, batch: int, runnable_by: Tool | None, refusals: list[str]) -> list[PlannedStep]:
    """Return fully sharded replicas on all devices, and what the search by chunks finds."""
    replicas, count = problem.cluster.computing, problem.graph.num_micro_batches
    found = [sharded(problem, replicas, 3, batch)] if len(replicas) > 1 and count % len(replicas) == 0 else []
    problems = {problem.setting: problem}
    return found + ways_that_fit(problems, found, batch, runnable_by, keeping(problems, runnable_by, refusals))


def may_be_faster(problem: PlacementProblem, count: int, us: float) -> bool:
    """Whether the step may take less than `us` microseconds in at least as many micro-batches as it is captured in.

    In more micro-batches, ops are smaller and take longer together. All devices share the work, and each micro-batch
    takes as long as its longest path.
    """
    path_us = problem.longest_path_us * problem.graph.num_micro_batches / count
    return max(least_us(problem, problem.cluster.computing), path_us) < us


def _replicas_us(problem: PlacementProblem, count: int) -> float:
    """Estimate the microseconds of fully sharded replicas in M micro-batches: all work, and what is computed again.

    The first blocks are recomputed, as few as leave room for the activations of one micro-batch.
    """
    computing, share = problem.cluster.computing, count / problem.graph.num_micro_batches
    work, room = least_us(problem, computing), int(problem.cluster.memory[list(computing)].min())
    room -= int(problem.resident_bytes.sum()) // len(computing)
    if (costs := block_costs(problem)) is None:
        return work
    saved = np.append(0, np.cumsum(np.maximum(costs.saved, 0))) / share
    needed = costs.kept.sum() / share - room
    blocks = int(np.searchsorted(saved, needed)) if needed > 0 else 0
    again_us = costs.us[:blocks].mean(axis=1).sum() * problem.graph.num_micro_batches / len(computing)
    return work + float(again_us) if blocks < len(saved) else math.inf
