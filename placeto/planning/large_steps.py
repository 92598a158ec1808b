"""The ways to run a large step: its pipelines are searched by their chunks alone, in the widths that look best.

A step of 80 layers in 64 micro-batches has 650,000 ops. To simulate it once takes half a second, and to try a plan as
those of smaller steps are tried takes dozens of simulations.

Legend: M micro-batches.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from operator import itemgetter
from typing import NamedTuple

import numpy as np

from placeto.errors import CaptureError, ClusterError
from placeto.heuristics.pipelines.block_costs import block_costs
from placeto.heuristics.pipelines.plans import least_us
from placeto.planning.planned_steps import PlannedStep
from placeto.planning.runnable import Runner
from placeto.planning.short_memory import ways_that_fit
from placeto.planning.single_ways import sharded
from placeto.planning.variants import Variants, is_large, one_each
from placeto.problem.problem import PlacementProblem

_WIDTHS = 2
"""A large step is tried in so many widths: those in which replicas would take the least time."""


class LargeStep(NamedTuple):
    """Ways to run a large step, and what else is to be tried."""

    ways: list[PlannedStep]  # fully sharded replicas on all devices, and what the search by chunks finds
    counts: tuple[int, ...]  # the other numbers of micro-batches that are to be tried


def plan_large(variants: Variants, counts: Iterable[int], runner: Runner) -> LargeStep:
    """Plan a step in the largest number of micro-batches in which it is large and can be captured.

    If there are more devices than the largest of three `counts` or more, as many micro-batches as devices also count.
    There are no ways, and all `counts` are to be tried, if the step isn't large in any number, has no blocks that can
    be recomputed, or fits in no way. Otherwise all smaller numbers in which it is large are left out.

    Args:
        variants: the step.
        counts: numbers of micro-batches to try.
        runner: what is to run the ways.
    """
    counts = tuple(dict.fromkeys(counts))
    next(variants.wanted(counts))  # a number that was asked for comes first: it may not divide the batch
    least = next(variants.wanted(sorted(counts)))
    more = [count for count in one_each(least.cluster, counts) if count > max(counts) and len(counts) > 2]
    large = [count for count in (*counts, *more) if is_large(least, count)]
    if not large or block_costs(least) is None:
        return LargeStep([], counts)
    ways, best_us, first = list[PlannedStep](), math.inf, least.graph.num_micro_batches
    for number in sorted(large, reverse=True):
        tried = False
        for smallest in _likely(variants, first, number):
            if may_be_faster(smallest, number, best_us):
                try:
                    problem = variants(number, smallest.width)
                except CaptureError:  # the number doesn't divide the batch
                    continue
                ways, tried = ways + _ways_of(problem, runner), True
                best_us = min((way.step_us for way in ways if way.fits), default=math.inf)
        if tried:
            break
    if best_us == math.inf:
        return LargeStep([], counts)
    left = (count for count in counts if count not in large)
    return LargeStep(ways, tuple(count for count in left if count == first or may_be_faster(least, count, best_us)))


def _likely(variants: Variants, first: int, count: int) -> list[PlacementProblem]:
    """Return the step in a few micro-batches, in the widths in which it is likely to take the least time in many.

    Widths are tried from the narrowest on, until one takes longer than the one before.

    Args:
        variants: the step.
        first: the number of micro-batches in which it is captured.
        count: M, how many they will be.
    """
    found, before_us = list[tuple[float, PlacementProblem]](), math.inf
    for width in (1, *variants.widths):
        try:
            problem = variants(first, width)
        except (CaptureError, ClusterError):
            continue
        found.append((us := _replicas_us(problem, count), problem))
        if us > before_us:
            break
        before_us = us
    best = sorted((each for each in found if each[0] < math.inf), key=itemgetter(0))[:_WIDTHS]
    return [problem for _, problem in best]


def _ways_of(problem: PlacementProblem, runner: Runner) -> list[PlannedStep]:
    """Return fully sharded replicas on all devices, and what the search by chunks finds."""
    replicas, count = problem.cluster.computing, problem.graph.num_micro_batches
    found = [sharded(problem, replicas, 3)] if len(replicas) > 1 and count % len(replicas) == 0 else []
    return found + ways_that_fit({problem.setting: problem}, found, runner)


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
