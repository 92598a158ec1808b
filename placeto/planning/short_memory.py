"""Ways to run a step where memory is short: blocks are recomputed, as few as possible, and stages begin elsewhere.

Legend: B blocks, D devices, M micro-batches, P stages, R replicas of a stage.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import chain
from operator import attrgetter, itemgetter
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from placeto.heuristics.pipelines.block_costs import BlockCosts, block_costs
from placeto.heuristics.pipelines.plan_chunks import order_of_ops
from placeto.heuristics.pipelines.plans import all_plans, make_plan, parts_to_plan
from placeto.heuristics.pipelines.stage_memory import (
    Fitted,
    by_chunks,
    fitted_by_chunks,
    fitting_stages,
    improved_by_chunks,
    least_chunks_us,
)
from placeto.planning.planned_steps import PIPELINES, Kind, PlannedStep, kind_of
from placeto.planning.runnable import Runner
from placeto.planning.single_ways import in_order, one_device, replicas_of
from placeto.planning.variants import Setting, is_large
from placeto.problem.problem import PlacementProblem
from placeto.problem.step.plan import Plan, Stages
from placeto.problem.step.recomputation import recomputable

_TRIED = 2
"""Number of pipelines of each kind, with different stages, near which a way is searched."""
_REPAIRS = 3
"""How often the blocks of a pipeline are chosen anew, by what its ops have needed."""
_UNSURE = 0.1
"""The ops of a pipeline may fit if its chunks lack at most this share of the memory."""
_ORDERS, _SIMILAR = 6, 1.02
"""At last, the ops of a pipeline run in as many orders of its chunks in which these take at most as many times as long
as in the best order."""
_CLOSE = 1.05
"""These orders aren't tried for a way that fits and takes more times as long as the fastest that fits."""
_FEW = 24
"""Number of pipelines of a large step whose chunks are simulated."""
_FAR = 1.1
"""Nothing is searched that takes as many times as long as the fastest way of any kind that fits. What the search found
near 13 pipelines of two models took 12 % less at most than the chunks with which it began."""
_SURE = 0.95
"""Nothing near a pipeline is tried if this share of the penalised time of its chunks is more than a way of its kind
takes. Its ops rarely take less: the least share of 6 cases was 0.86."""


class _Candidate(NamedTuple):
    """What may become a way that fits."""

    least_us: float  # it hardly takes less
    kind: Kind
    make: Callable[[], PlannedStep | None]


def ways_that_fit(
    problems: Mapping[Setting, PlacementProblem], found: Iterable[PlannedStep], runner: Runner
) -> list[PlannedStep]:
    """Return ways that fit since they recompute blocks; those that can't be the best of their kind are left out.

    If nothing fits at all, return ways that recompute all blocks, which lack the least.

    Args:
        problems: the step, by its width and number of micro-batches.
        found: the ways without recomputation; those of these problems that don't fit are tried again.
        runner: what is to run the ways.
    """
    best = dict[Kind, float]()
    candidates, too_large = list[_Candidate](), list[_Candidate]()
    for step in found:
        if step.fits:
            best[step.kind] = min(step.step_us, best.get(step.kind, math.inf))
        elif candidate := _recomputing(problems, step):
            (candidates if step.kept <= step.room else too_large).append(candidate)
    ways, lacking = _made(candidates, best)
    ranked = sorted(
        (each for problem in problems.values() for each in _pipelines(problem, runner, best)), key=itemgetter(0)
    )
    candidates.clear()
    for kind in PIPELINES:
        starts = dict[object, tuple[float, PlacementProblem, BlockCosts, Plan]]()
        for start in (each for each in ranked if kind_of(each[-1]) == kind):
            starts.setdefault((start[-1].devices, start[1].setting), start)
        for us, problem, costs, plan in [*starts.values()][:_TRIED]:
            candidates.append(_Candidate(_SURE * us, kind, partial(fastest_near, problem, costs, plan, runner, best)))
    more, lacking_more = _made(candidates, best)
    return ways + more if best else lacking + lacking_more + _made(too_large, best)[1]


def _made(candidates: Iterable[_Candidate], best: dict[Kind, float]) -> tuple[list[PlannedStep], list[PlannedStep]]:
    """Make ways of those candidates that may be the best of their kind, the likeliest first.

    None are made that take `_FAR` times as long as the best of any kind. Returns those that fit, and the others. `best`
    has the microseconds of the best way of each kind that fits.
    """
    ways, lacking = list[PlannedStep](), list[PlannedStep]()
    for candidate in sorted(candidates, key=attrgetter("least_us")):
        if candidate.least_us < _enough(best, candidate.kind) and (way := candidate.make()) is not None:
            (ways if way.fits else lacking).append(way)
            if way.fits:
                best[way.kind] = min(way.step_us, best.get(way.kind, math.inf))
    return ways, lacking


def _enough(best: Mapping[Kind, float], kind: Kind) -> float:
    """Microseconds from which on a way of a kind isn't searched, given those of the best ways of each kind that fit."""
    return min(best.get(kind, math.inf), _FAR * min(best.values(), default=math.inf))


def _recomputing(problems: Mapping[Setting, PlacementProblem], step: PlannedStep) -> _Candidate | None:
    """Return the candidate for the same way with the fewest recomputed blocks with which it fits; None without blocks.

    Only one device and replicas are tried: their blocks are recomputed in the order of the program.
    """
    plan, problem = step.plan, problems.get((step.width, step.micro_batches))
    if plan is None or len(plan.devices) > 1 or problem is None or not (blocks := recomputable(problem.graph)):
        return None

    def way(paths: tuple[str, ...]) -> PlannedStep:
        if len(plan.used) == 1:
            return one_device(problem, step.fullest, paths)
        return replicas_of(problem, replace(plan, recomputed=paths))

    return _Candidate(step.step_us, step.kind, partial(fewest_blocks, way, blocks))


def fewest_blocks(way: Callable[[tuple[str, ...]], PlannedStep], blocks: tuple[str, ...]) -> PlannedStep:
    """Return the way with the fewest recomputed blocks that fits; with all of them if none fits.

    Args:
        way: makes a way that recomputes some blocks; it doesn't fit without.
        blocks: the blocks, which are chosen in their order.
    """
    best, low, high = way(blocks), 0, len(blocks)
    while best.fits and high - low > 1:
        middle = (low + high) // 2
        if (made := way(blocks[:middle])).fits:
            best, high = made, middle
        else:
            low = middle
    return best


def _pipelines(
    problem: PlacementProblem, runner: Runner, best: Mapping[Kind, float]
) -> Iterator[tuple[float, PlacementProblem, BlockCosts, Plan]]:
    """Yield pipelines whose chunks nearly fit: their penalised makespan in us, the problem, its blocks, the plan.

    Where torch runs them, replicas of a stage share out the optimizer's state, which takes no time of the step.
    Those are left out that `best` rules out as in `_made`; of a large step, all but those with the least bounds.
    """
    count = problem.graph.num_micro_batches
    if count == 1 or (costs := block_costs(problem)) is None:
        return
    shared_out = runner.tool(problem) in (None, "torch") and bool(costs.keep.state.any())
    found = dict.fromkeys(_candidates(problem, costs, shared_out))
    kept = [plan.sharing_out() if shared_out else plan for plan in found if runner.keeps(problem, plan)]
    least_us = {plan: least_chunks_us(problem, costs, plan) for plan in kept}
    plans = [plan for plan in kept if _SURE * least_us[plan] < _enough(best, kind_of(plan))]
    if is_large(problem, count):
        plans = sorted(plans, key=least_us.__getitem__)[:_FEW]
    for plan in plans:
        fitted = fitted_by_chunks(problem, costs, plan, problem.cluster.memory)
        if fitted.lacking <= _UNSURE and _can_run(fitted.plan):
            yield fitted.penalised_us, problem, costs, fitted.plan


def _can_run(plan: Plan) -> bool:
    """Whether something may run a pipeline: Placeto's own runtime, which alone runs uneven ones, doesn't recompute."""
    return plan.even or not plan.recomputed


def _candidates(problem: PlacementProblem, costs: BlockCosts, shared_out: bool) -> Iterator[Plan]:
    """Yield pipelines whose stages begin at cuts: those that are made to fit, and interleaved ones.

    They fit if the replicas share out the optimizer's state, or, without `shared_out`, each have all of it. Of a large
    step, there are also all others, which haven't been tried op by op.
    """
    large = is_large(problem, problem.graph.num_micro_batches)
    for devices in _device_orders(problem):
        for stages in _stages(devices, len(costs.cuts) + 1):
            if len(stages[0]) <= problem.graph.num_micro_batches:
                for room in (1.0, 0.9):
                    if (made := fitting_stages(problem, costs, stages, room, shared_out)) is not None:
                        yield replace(make_plan(problem, stages, made[0]), recomputed=made[1])
                    elif (moved := costs.in_stages(make_plan(problem, stages))) is not None:
                        yield costs.recomputing(moved, [len(costs.paths)] * len(stages))
        for plan in all_plans(problem, devices):
            wanted = plan.interleaved or (large and len(plan.devices) > 1)
            if wanted and not plan.whole and (moved := costs.in_stages(plan)) is not None:
                yield moved


def _device_orders(problem: PlacementProblem) -> list[tuple[int, ...]]:
    """The parts of the cluster, and all devices with the slowest first: early stages hold more micro-batches."""
    slow_first = tuple(np.argsort(problem.speeds, kind="stable").tolist())
    return [*dict.fromkeys([*parts_to_plan(problem), slow_first])]


def _stages(devices: tuple[int, ...], most: int) -> Iterator[Stages]:
    """Yield the stages of pipelines with equally many devices: neighbours are replicas, or stages of one replica."""
    array = np.array(devices)
    for stages in range(2, min(len(devices), most) + 1):
        if len(devices) % stages == 0:
            replicas = len(devices) // stages
            for grid in (array.reshape(stages, replicas), array.reshape(replicas, stages).T)[: min(replicas, 2)]:
                yield tuple(tuple(row) for row in grid.tolist())


def fastest_near(
    problem: PlacementProblem,
    costs: BlockCosts,
    plan: Plan,
    runner: Runner,
    others: Mapping[Kind, float] = MappingProxyType({}),
) -> PlannedStep | None:
    """Return the fastest way of those near a pipeline that fit; None if none fits.

    Ops in the order of the chunks say how much memory each device needs in addition to that of its chunks. Further
    orders are tried if the way is nearly as fast as the fastest of others.

    Args:
        problem: the problem of the step, without what the plan recomputes.
        costs: of its blocks.
        plan: a pipeline whose stages begin at cuts.
        runner: what is to run the way.
        others: microseconds of other ways that fit.
    """
    best, tried, memory = None, set[object](), problem.cluster.memory
    room, orders = memory.astype(float), list[Fitted]()

    def run(fitted: Fitted) -> Iterator[PlannedStep]:
        """Yield the way in which the ops run in the order of the chunks, if it is new, and the tool can run it."""
        if fitted.key not in tried:
            tried.add(fitted.key)
            order = order_of_ops(fitted.plan.step(problem), fitted.plan, fitted.chunks, costs.joined(fitted.plan))
            yield from in_order(problem, fitted.plan, runner, order)

    def keep(near: Plan) -> bool:
        return runner.keeps(problem, near) and _can_run(near)

    for _ in range(_REPAIRS):
        fitted = improved_by_chunks(problem, costs, plan, room, keep)
        if (step := next(run(fitted), None)) is None:
            break
        room = memory - (step.result.schedule().peak_memory - fitted.chunks.peak_memory).astype(float)
        if best is None or (not step.fits, step.step_us) < (not best.fits, best.step_us):
            best, plan = step, fitted.plan
            orders = by_chunks(problem, costs, plan, room)
    fastest_us = min(others.values(), default=math.inf)
    close = best is not None and (not best.fits or best.step_us <= _CLOSE * fastest_us)
    most = _SIMILAR * orders[0].us if orders and close else 0.0
    similar = [each for each in orders if each.us <= most and each.lacking <= orders[0].lacking][:_ORDERS]
    ways = [step for step in (best, *chain(*map(run, similar))) if step is not None and step.fits]
    return min(ways, key=lambda step: step.step_us, default=None)
