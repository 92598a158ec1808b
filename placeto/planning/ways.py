"""The ways to train a model on given devices, each in its best number of micro-batches and order.

The ways are: one device; replicas that have all parameters or parts of them; pipelines of stages with replicas,
straight or interleaved; and a free placement of ops. The same simulator runs all of them, over the same links.

Legend: D devices, M micro-batches.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

import numpy as np

from placeto.errors import CaptureError, ClusterError, PlanError
from placeto.heuristics.pipelines.plan_chunks import Ranked
from placeto.heuristics.pipelines.plans import least_us, ranked_plans
from placeto.placers import load_placer
from placeto.planning.collecting import collected_seldom
from placeto.planning.large_steps import plan_large
from placeto.planning.numbers import LEAST, Chosen, Place, place_in_best
from placeto.planning.planned_steps import GAIN, Kind, PlannedStep, Plans, WayOut, kind_of
from placeto.planning.runnable import Runner
from placeto.planning.short_memory import ways_that_fit
from placeto.planning.single_ways import beyond_memory, in_order, one_device, planned, sharded, whole_modules
from placeto.planning.variants import COUNTS, Setting, Variants, is_large, one_each
from placeto.planning.ways_out import ways_out
from placeto.problem.problem import PlacementProblem
from placeto.problem.step.plan import Tool
from placeto.simulator.evaluator import PlacementResult
from placeto.simulator.warming import warm_up

DEFAULT_SIMULATIONS = 300
"""Budget of the search for a free placement, in simulations."""
SHOWN = 3
"""How many shapes of each kind of way are kept, at most."""
_TRIED = 2 * SHOWN  # shapes of a kind that are tried, as a tool may be unable to run some
_NUMBERS = 2  # numbers of micro-batches in which each of them is tried


@collected_seldom()
def plans_of(
    variants: Variants,
    counts: Iterable[int] = COUNTS,
    simulations: int = DEFAULT_SIMULATIONS,
    seed: int = 0,
    runnable_by: Tool | None = None,
) -> Plans:
    """Return the ways to run a step in several numbers of micro-batches, and in tensor-parallel groups.

    If none of them fits, or only so tightly that `PlannedStep.warning` says so, the step is also tried in the number in
    which each device gets one micro-batch, unless a multiple of it was tried. If the fastest way doesn't fit, ways are
    tried that recompute blocks: see `placeto.planning.short_memory`. If nothing fits then, the step is changed: see
    `placeto.planning.ways_out`.

    Args:
        variants: the step. Groups of widths that the model or the cluster refuses are left out.
        counts: numbers of micro-batches to try.
        simulations: budget of the search for a free placement, in simulations; 0 = no search. The search takes the
            number of micro-batches of the best other way, or the whole batch if a short search finds more there.
        seed: seed of that search.
        runnable_by: the tool that is to run the ways, as `plan` takes it.

    Raises:
        CaptureError: the step can't be captured in any of these numbers.
        PlanError: `counts` is empty, or `simulations` is negative.
    """
    if simulations < 0:
        raise PlanError(f"simulations must be at least 0, not {simulations}; with 0 there is no search")
    runner = Runner(runnable_by)
    planned, fastest = _planned_ways(variants, counts, runner)
    best: dict[Kind, dict[str, PlannedStep]] = {}
    rank = partial(_rank, runner)
    for step in sorted(planned, key=rank):
        if len(own := best.setdefault(step.kind, {})) < SHOWN:
            own.setdefault(step.shape, step)
    steps = sorted((step for own in best.values() for step in own.values()), key=rank)
    search = simulations > 0 and runnable_by is None and variants.cluster.num_devices > 1
    if search:
        free = _searched(variants.problems(), steps[0], simulations, seed)
        if (not free.fits, free.step_us) < (not steps[0].fits, steps[0].step_us * (1.0 - GAIN)):
            steps = [free, *steps]
    out: tuple[WayOut, ...] = ()
    alone = [step for step in planned if step.width == 1]
    if not steps[0].fits:
        out = ways_out(variants, min(alone, key=rank), partial(leanest, Runner(runnable_by)))
    return Plans(
        tuple(steps),
        variants.left_out,
        variants.batch,
        refused=next(iter(runner.refusals), ""),
        tried=tuple(dict.fromkeys(step.micro_batches for step in alone)),
        no_groups=variants.no_groups,
        searched=search,
        unlimited=None if fastest.fits else fastest,
        ways_out=out,
        headroom=variants.headroom,
    )


def place_or_plan(
    variants: Variants, place: Place, plans: bool, simulations: int | None = None, seconds: float | None = None
) -> Chosen:
    """Place a step in the best number of micro-batches of `COUNTS`; where memory is short, also try ways of `plans_of`.

    Memory is short in a training step if the fastest of the first placements doesn't fit. The fastest way that fits is
    taken then, or that which lacks the least, if the placer found none as good. Ways without a placement of the
    captured step, which divide its parameters, don't count.

    Args:
        variants: the step.
        place: places a problem; see `place_in_best`.
        plans: False = try no ways of `plans_of`.
        simulations: budget of the placer; see `place_in_best`. Each way takes a simulation more.
        seconds: budget of the placer, in seconds.

    Raises:
        CaptureError: the step can't be captured in any number.
        ValueError: the placer refuses the step in the first number.
        PlacerError: too few simulations to compare the numbers.
    """
    problems = {problem.graph.num_micro_batches: problem for problem in variants.wanted(COUNTS)}
    chosen = place_in_best(problems, place, simulations, seconds)
    fastest = min(chosen.first.values(), key=lambda result: result.makespan_us)
    if not plans or fastest.fits or fastest.problem.graph.mode != "training":
        return chosen
    begin, result = time.perf_counter(), chosen.result
    ways, _ = _planned_ways(variants, COUNTS, Runner(), placed=True)
    simulations, seconds = result.simulations + len(ways), result.seconds + time.perf_counter() - begin
    placed = [(result, ""), *((way.placement, way.name) for way in ways if way.placement is not None)]
    best, name = min(placed, key=lambda each: (_lack(each[0]), each[0].makespan_us))
    best = replace(best, history=result.history, simulations=simulations, seconds=seconds)
    return replace(chosen, count=best.problem.graph.num_micro_batches, result=best, way=name)


def _lack(result: PlacementResult) -> int:
    """Bytes that a placement needs beyond the memory of some device, at most; 0 if it fits."""
    return max(0, int((result.schedule().peak_memory - result.problem.cluster.memory).max()))


def _planned_ways(
    variants: Variants, counts: Iterable[int], runner: Runner, placed: bool = False
) -> tuple[list[PlannedStep], PlannedStep]:
    """Return all ways but a free placement, and the fastest of those without recomputation; see `plans_of`.

    If the ways are to be `placed`, those without a placement of the captured step don't count: they would keep slower
    ones from being tried.
    """

    def counted(ways: Iterable[PlannedStep]) -> list[PlannedStep]:
        return [way for way in ways if way.placement is not None or not placed]

    large = plan_large(variants, counts, runner)
    problems = by_setting(variants.wanted(large.counts))
    planned = counted(large.ways + plain_ways(problems, runner))
    each = () if large.ways else one_each(variants.cluster, (*variants.problems(), *variants.left_out))
    if each and not any(step.fits and not step.warning for step in planned):
        problems |= (more := by_setting(variants.wanted(each)))
        planned += counted(plain_ways(more, runner))
    again = [] if _fastest(planned).fits else ways_that_fit(problems, planned, runner)
    if large.ways:
        return planned + again, _fastest(planned)
    best_us = min((step.step_us for step in planned + again if step.fits), default=math.inf)
    groups = in_groups(variants, [count for _, count in problems], best_us)
    of_groups = counted(plain_ways(groups, runner))
    planned += [way for way in of_groups if runner.wanted != "torch" or way.kind != Kind.SHARDED]  # it has none
    if groups and not _fastest(planned).fits:
        again += ways_that_fit(groups, planned + again, runner)
    return planned + again, _fastest(planned)


def in_groups(variants: Variants, counts: Iterable[int], best_us: float) -> dict[Setting, PlacementProblem]:
    """Return the step in tensor-parallel groups, by width and number of micro-batches.

    In more micro-batches, ops are smaller and take longer together. So if the work alone, divided between all groups,
    takes longer than the best way so far, no larger number of micro-batches is captured.
    """
    found = dict[Setting, PlacementProblem]()
    for width in variants.widths:
        with suppress(CaptureError, ClusterError):  # see `Variants.no_groups`
            for problem in variants.wanted(sorted(counts), width):
                found[problem.setting] = problem
                if least_us(problem, problem.cluster.computing) >= best_us:
                    break
    return found


def by_setting(problems: Iterable[PlacementProblem]) -> dict[Setting, PlacementProblem]:
    """Return problems by their width and number of micro-batches."""
    return {problem.setting: problem for problem in problems}


def leanest(runner: Runner, problem: PlacementProblem) -> PlannedStep:
    """Return the best of the ways that need the least memory: the simple ones, sharded replicas, and recomputation.

    As in `plans_of`, ways that recompute are tried if the fastest of the others doesn't fit.
    """
    found, count, computing = _simple_ways(problem), problem.graph.num_micro_batches, problem.cluster.computing
    if len(computing) > 1 and count % len(computing) == 0:
        found.append(sharded(problem, computing, 3))
    if not min(found, key=_length).fits:
        found += ways_that_fit({problem.setting: problem}, found, runner)
    return min(found, key=partial(_rank, runner))


def plain_ways(problems: Mapping[Setting, PlacementProblem], runner: Runner) -> list[PlannedStep]:
    """Return all ways without recomputation, but a free placement."""
    simple = [way for problem in problems.values() for way in _simple_ways(problem)]
    return simple + _ways_of_plans(problems, runner)


def _length(step: PlannedStep) -> float:
    """Microseconds of a way to four digits: ways that differ less take as long."""
    return float(f"{step.step_us:.4g}")


def _fastest(planned: Sequence[PlannedStep]) -> PlannedStep:
    """Return the fastest of those ways that recompute nothing, whether it fits or not; of all if each recomputes."""
    return min([way for way in planned if way.plan is None or not way.plan.recomputed] or planned, key=_by_length)


def _by_length(step: PlannedStep) -> tuple[float, bool]:
    return _length(step), not step.fits


def _rank(runner: Runner, step: PlannedStep) -> tuple[bool, float, bool, int, int]:
    """Return a key to sort ways by.

    Ways that fit come first, by their time to four digits, then the others, by the memory that they lack. Of equal
    ways, that with less memory on the fullest device comes first, and then the simplest kind. If they are to run by a
    tool, those come first that have a placement, which `placeto export` and `placeto run` need.
    """
    length = _length(step) if step.fits else float(step.lacks)
    unplaced = runner.wanted is not None and step.placement is None
    return not step.fits, length, unplaced, step.used, [*Kind].index(step.kind)


def _simple_ways(problem: PlacementProblem) -> list[PlannedStep]:
    """Return the ways without stages or replicas: one device, and, without groups, whole modules on several."""
    us, memory = problem.alone_us, problem.cluster.memory
    fastest, *_ = devices = np.argsort(us, kind="stable").tolist()
    unlike = dict[tuple[float, int], int]()  # the first device of those that take as long and have as much memory
    for device in devices:
        unlike.setdefault((us[device], memory[device]), device)
    tried = (one_device(problem, device) for device in unlike.values())
    best = next((step for step in tried if step.fits), None) or one_device(problem, fastest)
    return [best, *(whole_modules(problem) if problem.width == 1 else ())]


def _ways_of_plans(problems: Mapping[Setting, PlacementProblem], runner: Runner) -> list[PlannedStep]:
    """Return pipelines and replicas: of each kind the shapes whose chunks rank best, in the best orders of their ops.

    A shape is simulated in the numbers of micro-batches in which its chunks rank best, replicas in all numbers. If
    chunks that don't fit take less time than all ways that fit, the fastest of them is returned as well: it says what
    the memory costs.

    Args:
        problems: the step, by its width and number of micro-batches.
        runner: what is to run the ways.
    """
    ranked: dict[Kind, dict[str, dict[Setting, Ranked]]] = {}  # by kind and shape
    too_large = list[tuple[Setting, Ranked]]()
    for setting, problem in problems.items():
        split = problem.graph.num_micro_batches > 1
        for each in ranked_plans(problem, partial(runner.keeps, problem)) if split else ():
            shapes = ranked.setdefault(kind_of(each.plan), {})
            shapes.setdefault(each.plan.shape(problem.cluster), {}).setdefault(setting, each)
            too_large += [(setting, each)] if each.us < each.score else []
    ways = list[PlannedStep]()
    for kind, shapes in ranked.items():
        shown = 0
        for ranks in sorted(shapes.values(), key=_best_rank)[:_TRIED]:
            if shown == SHOWN:
                break
            settings, steps = sorted(ranks, key=lambda setting: ranks[setting].score), list[PlannedStep]()
            for setting in settings if kind == Kind.REPLICAS else settings[:_NUMBERS]:
                steps += in_order(problems[setting], ranks[setting].plan, runner)
            shown += bool(steps)
            ways += steps
    fits_us = min((way.step_us for way in ways if way.fits), default=0.0)
    for setting, fastest in sorted(too_large, key=lambda each: each[1].us)[:1]:
        if fastest.us < fits_us:
            ways += beyond_memory(problems[setting], fastest.plan, runner)
    return ways


def _best_rank(ranks: Mapping[Setting, Ranked]) -> float:
    return min(each.score for each in ranks.values())


def _searched(
    problems: Mapping[int, PlacementProblem], before: PlannedStep, simulations: int, seed: int
) -> PlannedStep:
    """Return what the default placer finds, in the number of micro-batches of the best other way or in the whole batch.

    In the whole batch, devices work at the same time where a model has parallel branches: a GNMT of 4 layers takes 16 %
    less time there than in the number of its best other way (on 4xv100, 300 simulations). With a budget that is too
    small for two numbers, only that of the best way is tried.
    """
    placer, best = load_placer("placeto"), before.micro_batches
    numbers = dict.fromkeys((best, 1) if simulations >= 2 * LEAST else (best,))

    def place(problem: PlacementProblem, simulations: int | None, seconds: float | None) -> PlacementResult:
        warm_up(placer, problem, simulations, seconds)
        return placer(problem, simulations=simulations, seconds=seconds, seed=seed)

    least = min(problems)
    usable = [count for count in numbers if count in problems and not is_large(problems[least], count)] or [least]
    chosen = place_in_best({count: problems[count] for count in usable}, place, simulations)
    return planned(None, chosen.result, chosen.result)
