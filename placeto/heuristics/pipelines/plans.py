"""Plans that people run by hand, for steps in micro-batches: stages of contiguous layers, each on several replicas.

A plan with one stage is data parallelism, and one with one replica of each stage is a pipeline. After PipeDream
(Narayanan et al., SOSP 2019) and GPipe (Huang et al., NeurIPS 2019). A stage's share of the work is in proportion to
the speed of its devices, and a replica's share of the micro-batches to its own speed.

In an interleaved plan each device has several stages: the devices come once more in the same order (Narayanan et al.,
SC 2021, arXiv 2104.04473) or in the opposite one (Qi et al., NeurIPS 2024, arXiv 2405.15362). Pipelines then fill
sooner. In the opposite order the first and the last layers share a device, so that a parameter of both isn't sent.

Legend: N ops, D devices, P stages, M micro-batches, L layers.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from placeto.errors import PlanError
from placeto.heuristics.naive import try_single
from placeto.heuristics.pipelines.order_choice import choose_order, orders_to_try, try_bounded_orders
from placeto.heuristics.pipelines.plan_chunks import Ranked, rank_plan
from placeto.heuristics.pipelines.stage_program import stage_programs
from placeto.heuristics.repair import repair
from placeto.problem.cluster.subclusters import halves, subclusters
from placeto.problem.graph.module_paths import LOSS
from placeto.problem.problem import PlacementProblem
from placeto.problem.step.layers import layers
from placeto.problem.step.plan import TOOLS, Plan, Stages, Tool, dealt
from placeto.simulator.evaluator import Evaluator
from placeto.simulator.schedule import simulate

Scored = tuple[float, Plan, np.ndarray]
"""The score of a plan in microseconds, the plan, and its placement (N,)."""
_INTERLEAVED = 2, 3  # stages of each device; four are up to 1.7 % better in 3 of 36 cases, for a third more plans
_BEST = 3  # number of plans that are tried in further orders
FIRST_ORDERS = ("priority", "earlier-0.02")
"""Plans are ranked and tried under these orders. The best, and the best with one stage, are then tried under others."""


def try_all_plans(evaluator: Evaluator, seed: int) -> None:
    """Stages of contiguous layers on replicas, or one device: the best plan and order for a step in micro-batches.

    Without micro-batches, each device has one stage: with several stages a device, the step would only send more often,
    and tools that serve models need contiguous layers. An inference of several layers that fits in no such way isn't
    repaired.
    """
    graph = evaluator.problem.graph
    contiguous = graph.num_micro_batches == 1
    served = contiguous and graph.mode == "inference" and len(layers(evaluator.problem, False)) > 1
    try_single(evaluator, seed)
    try_plans(evaluator, seed, contiguous=contiguous)
    if contiguous:
        _fill_memory(evaluator)
    if not evaluator.best_fits and not served:
        repair(evaluator)
    _until_one_fits(evaluator, _contiguous if served else _any)


def _fill_memory(evaluator: Evaluator) -> None:
    """If no plan fits, try stages that take equal shares of their devices' memory, and move their borders.

    Each layer counts with its parameters, gradients and optimizer state.
    """
    problem, cut = evaluator.problem, layers(evaluator.problem, False)
    resident = np.bincount(cut.number, weights=problem.resident_bytes, minlength=len(cut))
    memory = problem.cluster.memory.astype(np.float64)
    for stages in range(2, min(problem.num_devices, len(cut)) + 1):
        if evaluator.best_fits or evaluator.exhausted:
            return
        devices = np.sort(memory.argsort(kind="stable")[-stages:])  # those with the most memory
        borders = _balanced(resident, memory[devices])
        plan = make_plan(problem, tuple((device,) for device in devices.tolist()), borders)
        evaluator.score_plan(plan, plan.placement(problem))
        improved(evaluator, plan, ())


def try_even_plans(evaluator: Evaluator, seed: int) -> None:
    """As pipeline, but only plans that torch.distributed can run, with equally many replicas; see `placeto export`."""
    try_plans(evaluator, seed, even=True)
    _until_one_fits(evaluator, partial(_torch_runs, evaluator.problem, []))


def try_plans(evaluator: Evaluator, seed: int, even: bool = False, contiguous: bool = False) -> None:
    """Score the plans that rank best, the best three and one with one stage under all orders.

    Then borders of the best plan's stages move, a layer at a time, as long as that helps. Afterwards the evaluator's
    dispatch is the static order of the best placement. The best plans are also tried in orders that are made for their
    placements: see `bounded_orders`. If there are no micro-batches, or the problem's dispatch is no static order, the
    dispatch stays as it is.

    Args:
        evaluator: scores, and keeps the best.
        seed: ignored.
        even: score only plans whose stages all have equally many replicas, with equally many micro-batches each. If
            there are none, all plans are scored. For a captured step in micro-batches, score only those that torch can
            run.
        contiguous: score only plans with one stage on each device.

    Raises:
        PlanError: `even` is set, and torch can run none of the plans.
    """
    problem, refusals = evaluator.problem, list[str]()
    for device in range(problem.num_devices):  # `single` has scored, or will score, these placements
        evaluator.note_plan(make_plan(problem, ((device,),), ()), np.full(problem.num_ops, device))
    keep = partial(_torch_runs, problem, refusals) if even else _contiguous if contiguous else _any
    decided = orders_to_try(problem)
    plans = score_plans(evaluator, keep)
    if even and not plans:
        if refusals:
            raise PlanError(f"torch runs no pipeline of this step on {problem.cluster.name}: {refusals[0]}")
        plans, keep = score_plans(evaluator), _any
    if not even:  # torch runs whole chunks, in orders of its own
        plans = _under_further_orders(evaluator, plans, decided)
    if not plans:  # the best placement so far takes no longer than the work alone, or there is only one layer
        choose_order(evaluator, decided)
        if evaluator.best is None:
            try_single(evaluator, seed)
        return
    (_, best, _), *_ = plans
    moved = improved(evaluator, best, decided, keep)
    placements = [] if moved == best else [moved.placement(problem)]
    placements += [placement for _, _, placement in plans[:_BEST]]
    # data parallelism that fits under no static order is far behind, but may be the best in an order made for it
    for placement in [placement for _, plan, placement in plans[_BEST:] if len(plan.devices) == 1][:1]:
        evaluator.score_ops(placement)
        placements += [] if evaluator.last_fits else [placement]
    for placement in placements if decided else ():
        try_bounded_orders(evaluator, placement)


def _until_one_fits(evaluator: Evaluator, keep: Callable[[Plan], bool]) -> None:
    """If nothing fits, simulate all plans in all orders until one fits; those whose chunks rank best come first.

    The orders that are made for a placement come after the static ones.

    Args:
        evaluator: scores, and keeps the best.
        keep: whether a plan counts.
    """
    orders = orders_to_try(evaluator.problem)
    if evaluator.best_fits or not orders:
        return
    plans = [each.plan for each in ranked_plans(evaluator.problem, keep, lambda: evaluator.exhausted)]
    placements = [plan.placement(evaluator.problem) for plan in plans]
    for order in orders:
        evaluator.reorder(order)
        for plan, placement in zip(plans, placements, strict=True):
            if evaluator.exhausted or evaluator.best_fits:
                break
            evaluator.score_plan(plan, placement)
    for placement in placements:
        if not evaluator.best_fits:
            try_bounded_orders(evaluator, placement)
    evaluator.reorder(evaluator.best_dispatch)


def _any(plan: Plan) -> bool:
    return True


def _contiguous(plan: Plan) -> bool:
    return not plan.interleaved


def _torch_runs(problem: PlacementProblem, refusals: list[str], plan: Plan) -> bool:
    """Whether torch can run a plan of a captured step; of other steps, whether it is even."""
    if LOSS not in problem.graph.modules or problem.graph.num_micro_batches == 1:
        return plan.even
    return can_run(problem, "torch", refusals, plan)


def can_run(problem: PlacementProblem, tool: Tool, refusals: list[str], plan: Plan) -> bool:
    """Whether a tool can run a plan; the reason why it can't run an even one is appended to `refusals`."""
    if not plan.even:
        return False
    run = plan if tool == "torch" else plan.in_blocks(problem)
    why = run.refusal(problem, tool)
    if not why and len(run.devices) < len(plan.devices):
        why = f"a stage has no block of its own, which {TOOLS[tool]} needs: use fewer stages"
    refusals += [why] if why else []
    return not why


def ranked_plans(
    problem: PlacementProblem, keep: Callable[[Plan], bool] = _any, ended: Callable[[], bool] = lambda: False
) -> list[Ranked]:
    """Simulate the chunks of all plans in the likeliest orders; returns the plans with their scores, the best first.

    A part of the cluster is left out if the work alone takes its devices at least as long as the best plan so far.

    Args:
        problem: the problem whose graph is cut.
        keep: whether a plan counts.
        ended: whether no further plan is to be ranked, as when the time is up.
    """
    orders = [name for name in FIRST_ORDERS if name in orders_to_try(problem)] or [problem.dispatch]
    ranked, best = dict[tuple[object, ...], Ranked](), math.inf
    for devices in parts_to_plan(problem):
        if least_us(problem, devices) >= best:
            continue
        for plan in all_plans(problem, devices):
            plan = plan if keep(plan) else plan.joined()  # a tool may be unable to cut where a plan turns back
            joined = plan.joined()
            key = joined.devices, joined.borders, plan.whole
            if not ended() and keep(plan) and key not in ranked:
                ranked[key] = rank_plan(problem, plan, orders)
                best = min(best, ranked[key].score)
    return sorted(ranked.values(), key=lambda each: each.score)


def score_plans(evaluator: Evaluator, keep: Callable[[Plan], bool] = _any) -> list[Scored]:
    """Simulate the ops of the plans that rank best; returns them with their scores, the best first.

    These are the best `_BEST` of `ranked_plans`, the best with one stage, the best with the most stages, and all
    further ones that may be better than the best so far, if their ops are as much faster than their chunks as those of
    any plan before them. With many stages they may be much faster, as where the layers of a recurrent network overlap.
    With one micro-batch all plans are simulated, since its chunks run one after the other. The score of a plan is the
    best one under the likeliest orders.

    Args:
        evaluator: scores, and keeps the best.
        keep: whether a plan counts.
    """
    problem = evaluator.problem
    orders = [name for name in FIRST_ORDERS if name in orders_to_try(problem)] or [problem.dispatch]
    ranked = ranked_plans(problem, keep, lambda: evaluator.exhausted)
    stages = [len(each.plan.devices) for each in ranked]
    first = _BEST if problem.graph.num_micro_batches > 1 else len(ranked)
    extremes = [stages.index(number) for number in (1, max(stages, default=1)) if number in stages]
    wanted = [*dict.fromkeys([*range(min(first, len(ranked))), *extremes])]
    placements, scores = dict[int, np.ndarray](), dict[int, float]()
    while wanted and not evaluator.exhausted:
        placements |= {rank: ranked[rank].plan.placement(problem) for rank in wanted}
        for order in orders:
            evaluator.reorder(order)  # which takes a simulation, so that it is done for several plans at once
            for rank in wanted:
                score = evaluator.score_plan(ranked[rank].plan, placements[rank])
                scores[rank] = min(score, scores.get(rank, math.inf))
        best = min(scores.values())
        least = min(score / max(ranked[rank].score, 1e-9) for rank, score in scores.items())
        wanted = [rank for rank, each in enumerate(ranked) if rank not in scores and each.score * least < best]
    scored = [(score, ranked[rank].plan, placements[rank]) for rank, score in scores.items()]
    return sorted(scored, key=lambda each: each[0])


def _under_further_orders(evaluator: Evaluator, plans: list[Scored], orders: Sequence[str]) -> list[Scored]:
    """Simulate the best plans, and the best with one stage, under all orders but `FIRST_ORDERS`.

    The best plan with one stage counts since data parallelism may be far behind under the first orders, but the best of
    all plans under another one. Returns all plans with their best scores, the best first.

    Args:
        evaluator: scores, and keeps the best.
        plans: as `score_plans` returns them.
        orders: all orders to try.
    """
    one_stage = [rank for rank, (_, plan, _) in enumerate(plans) if len(plan.devices) == 1][:1]
    tried = dict.fromkeys([*range(min(_BEST, len(plans))), *one_stage])
    scores = [score for score, _, _ in plans]
    for order in orders:
        if order not in FIRST_ORDERS:
            evaluator.reorder(order)
            for rank in tried:
                if not evaluator.exhausted:
                    scores[rank] = min(scores[rank], evaluator.score_ops(plans[rank][2]))
    return sorted(((score, *plan[1:]) for score, plan in zip(scores, plans, strict=True)), key=lambda each: each[0])


def improved(evaluator: Evaluator, plan: Plan, orders: tuple[str, ...], keep: Callable[[Plan], bool] = _any) -> Plan:
    """Choose the order of the best placement, and move borders of a plan's stages as long as that helps.

    A border moves by one layer. If one has moved, the order is chosen again. Returns the plan. No border moves if the
    devices need more memory than they have together: moves made none of 27 such plans fit.

    Args:
        evaluator: scores, and keeps the best.
        plan: a plan that the evaluator has scored.
        orders: static orders to choose among.
        keep: whether a plan counts.
    """
    choose_order(evaluator, orders)
    problem, first, placement = evaluator.problem, plan, plan.placement(evaluator.problem)
    score = evaluator.score_ops(placement)
    better = evaluator.last_fits or int(simulate(problem, placement).peak_memory.sum()) <= sum(problem.cluster.memory)
    while better and not evaluator.exhausted:
        better = False
        for border, step in itertools.product(range(len(plan.borders)), (-1, 1)):
            if (moved := plan.moved(border, step)) is None or not keep(moved):
                continue
            if (after := evaluator.score_plan(moved, moved.placement(problem))) < score:
                plan, score, better = moved, after, True
    if plan != first:
        choose_order(evaluator, orders)
    return plan


def parts_to_plan(problem: PlacementProblem) -> list[tuple[int, ...]]:
    """The devices of each part of the cluster to plan for: first all devices, then parts such as a host."""
    cluster = problem.cluster
    return [tuple(range(problem.num_devices)), *subclusters(cluster), *halves(cluster)]


def least_us(problem: PlacementProblem, devices: Sequence[int]) -> float:
    """Microseconds of all work, each op at its time on the fastest of some devices, divided by their number."""
    return float(problem.busy_us[:, list(devices)].min(axis=1).sum()) / len(devices)


def all_plans(problem: PlacementProblem, devices: Sequence[int] | None = None) -> list[Plan]:
    """The plans that are tried: those of `_grids`, and those of `stage_programs` with other stages.

    If modules run more than once, as in a recurrent network, there are also plans whose layers keep modules whole.

    Args:
        problem: the problem whose graph is cut.
        devices: the devices to use, in an order in which neighbours are near each other; None = all of the cluster.
    """
    used = np.arange(problem.num_devices) if devices is None else np.array(devices)
    several, plans = not np.array_equal(layers(problem, True).number, layers(problem, False).number), []
    for whole in (False, True) if several else (False,):
        grids = {stages: make_plan(problem, stages, None, whole) for stages in _grids(problem, used, whole)}
        plans += [*grids.values(), *(plan for plan in _programmed(problem, used, whole) if plan.devices not in grids)]
    return plans


def _grids(problem: PlacementProblem, devices: np.ndarray, whole: bool) -> list[Stages]:
    """The stages of plans in which all stages have equally many devices.

    Neighbouring devices are either the replicas of one stage, or the stages of one replica. After these come the same
    stages interleaved, with several stages on each device, if there are enough layers.
    """
    arrays, num_layers = [], len(layers(problem, whole))
    for stages in range(1, min(len(devices), num_layers) + 1):
        replicas = len(devices) // stages
        if len(devices) % stages == 0 and replicas <= problem.graph.num_micro_batches:
            arrays += [devices.reshape(stages, replicas), devices.reshape(replicas, stages).T]
    grids = [tuple(tuple(row) for row in grid.tolist()) for grid in arrays]
    for stages_each, grid in itertools.product(_INTERLEAVED, tuple(grids)):
        if 1 < len(grid) <= num_layers // stages_each:
            turns = [grid if turn % 2 == 0 else grid[::-1] for turn in range(stages_each)]
            grids += [grid * stages_each, tuple(itertools.chain(*turns))]
    return list(dict.fromkeys(grids))


def _programmed(problem: PlacementProblem, devices: np.ndarray, whole: bool) -> list[Plan]:
    """The plans of `stage_programs`, whose stages may have different numbers of replicas."""
    cut, count = layers(problem, whole), problem.graph.num_micro_batches
    speed = problem.num_devices * problem.speeds[devices]
    sent, bandwidth = 2 * count * cut.crossing, problem.cluster.bandwidth[np.ix_(devices, devices)]
    programs = stage_programs(cut.work_us, cut.parameters, sent, speed, bandwidth, count)
    return [
        make_plan(problem, tuple(tuple(devices[list(replicas)].tolist()) for replicas in stages), borders, whole)
        for stages, borders in programs
    ]


def make_plan(
    problem: PlacementProblem, devices: Stages, borders: Sequence[int] | None = None, whole: bool = False
) -> Plan:
    """Make the plan whose replicas take micro-batches in proportion to the speed of their devices.

    Args:
        problem: the problem whose graph is cut.
        devices: (P, R) of each stage.
        borders: (P-1,) first layer of each stage but the first; None = stages take as equal times, at the speed of
            their devices, as whole layers allow.
        whole: whether the layers keep modules whole.
    """
    speeds, work, count = problem.speeds, layers(problem, whole).work_us, problem.graph.num_micro_batches
    micro_batches = tuple(dealt(count, speeds[list(replicas)]) for replicas in devices)
    if borders is None:
        borders = _balanced(work, np.array([speeds[list(replicas)].sum() for replicas in devices]))
    return Plan(devices, tuple(borders), micro_batches, len(work), whole, width=problem.width)


def _balanced(work: np.ndarray, speed: np.ndarray) -> tuple[int, ...]:
    """The borders (P-1,) of stages of the speeds `speed` (P,) whose slowest stage takes the least time."""
    low, high = float(work.sum() / speed.sum()), float(work.sum() / speed.min())
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (low, middle) if _filled(work, speed * middle)[1] else (middle, high)
    return _filled(work, speed * high)[0]


def _filled(work: np.ndarray, room: np.ndarray) -> tuple[tuple[int, ...], bool]:
    """Give stages as many layers as `room` (P,) us allows, at least one each; returns the borders, and if all fit."""
    borders, layer, stages = [], 0, len(room)
    for stage in range(stages):
        filled_us, last = 0.0, len(work) - (stages - 1 - stage)
        first = layer
        while layer < last and (layer == first or filled_us + work[layer] <= room[stage]):
            filled_us += work[layer]
            layer += 1
        borders.append(layer)
    return tuple(borders[:-1]), layer == len(work) and bool(filled_us <= room[-1])
