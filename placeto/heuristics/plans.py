"""Plans that people run by hand, for steps in micro-batches: stages of contiguous layers, each on several replicas.

One stage is data parallelism, one replica a pipeline. After PipeDream (Narayanan et al., SOSP 2019) and GPipe (Huang et
al., NeurIPS 2019). A stage's share of the work follows from the speed of its devices, a replica's share of the
micro-batches from its own.

In an interleaved plan devices have several stages each: they come in the same order again (Narayanan et al., SC 2021,
arXiv 2104.04473) or back in the opposite one (Qi et al., NeurIPS 2024, arXiv 2405.15362). Pipelines then fill sooner,
and where they come back, the first and the last layers share a device, so that a parameter of both needn't travel.

Legend: N ops, D devices, P stages, M micro-batches, L layers.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from placeto.formats.exports.torch_stages import torch_refusal
from placeto.formats.exports.units import LOSS
from placeto.heuristics.bounded_orders import bounded_orders
from placeto.heuristics.common import device_speeds
from placeto.heuristics.naive import try_single
from placeto.heuristics.plan_layers import layers
from placeto.heuristics.stage_program import stage_programs
from placeto.problem.cluster import STATIC_ORDERS
from placeto.problem.cluster.subclusters import halves, subclusters
from placeto.problem.graph import ComputationGraph
from placeto.problem.graph.labels import NO_MICRO_BATCH
from placeto.problem.problem import PlacementProblem
from placeto.simulator.evaluator import Evaluator

Stages = tuple[tuple[int, ...], ...]
"""The devices of each stage."""
Scored = tuple[float, "Plan", np.ndarray]
"""A plan with its score in microseconds before it and its placement (N,) behind it."""
_INTERLEAVED = 2, 3  # stages of each device; four are up to 1.7 % better in 3 of 36 cases, for a third more plans
_ON_ORDERS = 0.02  # of what is left after the starts
_BEST = 3  # of the plans, which are tried in further orders
FIRST_ORDERS = ("priority", "earlier-0.02")
"""Orders under which all plans are tried; the best of them, and data parallelism, are then tried under all others."""


def try_all_plans(evaluator: Evaluator, seed: int) -> None:
    """Stages of contiguous layers on replicas, or one device: the best plan and order for a step in micro-batches."""
    try_single(evaluator, seed)
    try_plans(evaluator, seed)


class PlanError(ValueError):
    """A step of which torch runs no plan; the message says why."""


def try_even_plans(evaluator: Evaluator, seed: int) -> None:
    """As pipeline, but only plans that torch.distributed can run, with equally many replicas; see `placeto export`."""
    try_plans(evaluator, seed, even=True)


def try_plans(evaluator: Evaluator, seed: int, even: bool = False) -> None:
    """Score all plans under the likeliest orders; the best three and the best with one stage under the others, too.

    Then borders of the best plan's stages move, a layer at a time, as long as that helps. The evaluator goes on under
    the static order of the best placement. The best plans are also tried in orders made for them alone: see
    `placeto.heuristics.bounded_orders`. Where there are no micro-batches, or the problem's dispatch is no static order,
    the order stays.

    Args:
        evaluator: scores, and keeps the best.
        seed: has no say.
        even: of plans whose stages deal the micro-batches in the same way, equally many to each replica, if there are;
            of a captured step in micro-batches, of those that torch can run.

    Raises:
        PlanError: torch can run none of the plans.
    """
    problem, refusals = evaluator.problem, list[str]()
    keep = partial(_torch_runs, problem, refusals) if even else _any
    decided = orders_to_try(problem)
    plans = score_plans(evaluator, keep)
    if even and not plans:
        if refusals:
            raise PlanError(f"torch runs no pipeline of this step on {problem.cluster.name}: {refusals[0]}")
        plans, keep = score_plans(evaluator), _any
    if not even:  # torch runs whole chunks, whose orders these are not
        plans = _under_further_orders(evaluator, plans, decided)
    choose_order(evaluator, decided)
    if not plans:  # the best placement so far takes no longer than the work alone
        return
    (_, best, placement), *_ = plans
    placements = [placement for _, _, placement in plans[:_BEST]]
    if not evaluator.exhausted:
        moved = move_borders(evaluator, problem, best, evaluator.score_ops(placement), keep)
        if moved != best:
            choose_order(evaluator, decided)
            placements = [moved.placement(problem), *placements]
    for placement in placements if decided else ():
        try_bounded_orders(evaluator, placement)


def _any(plan: Plan, placement: np.ndarray) -> bool:
    return True


def _torch_runs(problem: PlacementProblem, refusals: list[str], plan: Plan, placement: np.ndarray) -> bool:
    """Whether torch can run a plan; `refusals` grows by why it can't."""
    if not plan.even(problem) or LOSS not in problem.graph.modules or num_micro_batches(problem.graph) == 1:
        return plan.even(problem)
    why = torch_refusal(problem, placement)
    refusals += [why] if why else []
    return not why


def score_plans(evaluator: Evaluator, keep: Callable[[Plan, np.ndarray], bool] = _any) -> list[Scored]:
    """Simulate all plans under the likeliest orders: their scores in microseconds, and their placements (N,).

    The best come first. Plans on a part of the cluster are tried where its devices could do the work in less time than
    the best placement so far. Of plans that place alike the first is there.

    Args:
        evaluator: scores, and keeps the best.
        keep: which plans count, each with its placement.
    """
    problem = evaluator.problem
    decided = orders_to_try(problem)
    found, met = list[Scored](), set[bytes]()
    for devices in parts_to_plan(problem):
        if evaluator.exhausted or least_us(problem, devices) >= evaluator.best_score:
            continue
        kept = list[tuple[Plan, np.ndarray]]()
        for plan in all_plans(problem, devices):
            placement = plan.placement(problem)
            if placement.tobytes() not in met and keep(plan, placement):
                met.add(placement.tobytes())
                kept.append((plan, placement))
        scores = np.full(len(kept), math.inf)
        for order in [name for name in FIRST_ORDERS if name in decided] or [problem.dispatch]:
            evaluator.reorder(order)
            scores = np.minimum(scores, [evaluator.score_ops(placement) for _, placement in kept])
        found += [(score, *plan) for score, plan in zip(scores.tolist(), kept, strict=True)]
    return sorted(found, key=lambda each: each[0])


def _under_further_orders(evaluator: Evaluator, plans: list[Scored], orders: Sequence[str]) -> list[Scored]:
    """Simulate the best plans, and the best with one stage, under the orders that aren't the first ones.

    Data parallelism may be far behind under the first orders and the best of all plans under another.

    Args:
        evaluator: scores, and keeps the best.
        plans: as `score_plans` returns them.
        orders: all that are to be tried.
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


def move_borders(
    evaluator: Evaluator,
    problem: PlacementProblem,
    plan: Plan,
    score: float,
    keep: Callable[[Plan, np.ndarray], bool] = _any,
) -> Plan:
    """Move borders of stages by a layer, each move that helps at once, until none does; returns the plan.

    Args:
        evaluator: scores, and keeps the best.
        problem: the evaluator's.
        plan: where it begins.
        score: that of the plan, in microseconds.
        keep: which plans count, each with its placement.
    """
    better = True
    while better and not evaluator.exhausted:
        better = False
        for border in range(len(plan.borders)):
            for step in (-1, 1):
                moved = plan.moved(border, step)
                if moved is None or not keep(moved, placement := moved.placement(problem)):
                    continue
                if (after := evaluator.score_ops(placement)) < score:
                    plan, score, better = moved, after, True
    return plan


def try_bounded_orders(evaluator: Evaluator, placement: np.ndarray) -> None:
    """Simulate a placement in orders made for it: see `placeto.heuristics.bounded_orders`."""
    orders = bounded_orders(evaluator.problem, placement)
    while not evaluator.exhausted and (order := next(orders, None)) is not None:
        evaluator.score_ops(placement, order)


def orders_to_try(problem: PlacementProblem) -> tuple[str, ...]:
    """Orders among which a search chooses: none where there are no micro-batches, or another dispatch is asked for."""
    several = num_micro_batches(problem.graph) > 1
    return STATIC_ORDERS if several and problem.dispatch in STATIC_ORDERS and problem.num_devices > 1 else ()


def choose_order(evaluator: Evaluator, orders: tuple[str, ...]) -> None:
    """Simulate the best placement under each static order that it was not found under; go on under the best."""
    best = evaluator.best
    if best is None:
        return
    found = evaluator.best_dispatch
    for order in orders:
        if order != found and not evaluator.exhausted:
            evaluator.reorder(order)
            evaluator.score_ops(best)
    evaluator.reorder(evaluator.best_dispatch)


@contextmanager
def order_chosen_again(evaluator: Evaluator) -> Iterator[None]:
    """Within it the budget is less a small share, for which the best placement is then simulated in other orders.

    These are each static order, and those that are made for it. The best placement that keeps groups together, which
    the search has found under the static order that it kept to, may gain more by them, and is tried as well.
    """
    if not (orders := orders_to_try(evaluator.problem)):
        yield
        return
    with evaluator.limited_to(1.0 - _ON_ORDERS):
        yield
    searched = evaluator.best_groups[0][evaluator.groups.group]
    choose_order(evaluator, orders)
    if evaluator.best is not None and not np.array_equal(evaluator.best, searched):
        try_bounded_orders(evaluator, evaluator.best)
    try_bounded_orders(evaluator, searched)


def num_micro_batches(graph: ComputationGraph) -> int:
    """M, 1 where the graph has no micro-batches."""
    return max(1, int(graph.micro_batches.max(initial=NO_MICRO_BATCH)) + 1)


def parts_to_plan(problem: PlacementProblem) -> list[tuple[int, ...]]:
    """Devices to plan for: all of them, then parts of the cluster such as a host."""
    cluster = problem.cluster
    return [tuple(range(problem.num_devices)), *subclusters(cluster), *halves(cluster)]


def least_us(problem: PlacementProblem, devices: Sequence[int]) -> float:
    """Microseconds that some devices need at least for the work of a problem."""
    return float(problem.busy_us[:, list(devices)].min(axis=1).sum()) / len(devices)


def all_plans(problem: PlacementProblem, devices: Sequence[int] | None = None) -> list[Plan]:
    """The plans that are tried: grids, stages of equally many devices, and those of a program over layers.

    Where modules run more than once, as in a recurrent network, there are also those that keep modules whole.

    Args:
        problem: whose graph is cut.
        devices: to use, neighbours side by side; all of the cluster's if not given.
    """
    own = np.arange(problem.num_devices) if devices is None else np.array(devices)
    several, found = not np.array_equal(layers(problem, True).number, layers(problem, False).number), []
    for whole in (False, True) if several else (False,):
        grids = {stages: Plan.balanced(problem, stages, whole) for stages in _grids(problem, own, whole)}
        found += [*grids.values(), *(plan for plan in _programmed(problem, own, whole) if plan.devices not in grids)]
    return found


def _grids(problem: PlacementProblem, devices: np.ndarray, whole: bool) -> list[Stages]:
    """Stages of equally many devices, whose replicas are neighbours, or else the stages of each replica.

    Then the same interleaved: devices have several stages each, as far as there are layers.
    """
    found = []
    for stages in range(1, len(devices) + 1):
        replicas = len(devices) // stages
        if len(devices) % stages == 0 and replicas <= num_micro_batches(problem.graph):
            found += [devices.reshape(stages, replicas), devices.reshape(replicas, stages).T]
    grids = [tuple(tuple(row) for row in grid.tolist()) for grid in found]
    num_layers = len(layers(problem, whole).work_us)
    for each, grid in itertools.product(_INTERLEAVED, tuple(grids)):
        if 1 < len(grid) <= num_layers // each:
            turns = [grid if turn % 2 == 0 else grid[::-1] for turn in range(each)]
            grids += [grid * each, tuple(itertools.chain(*turns))]
    return list(dict.fromkeys(grids))


def _programmed(problem: PlacementProblem, devices: np.ndarray, whole: bool) -> list[Plan]:
    """Plans whose stages may have different numbers of replicas."""
    cut, count = layers(problem, whole), num_micro_batches(problem.graph)
    speed = problem.num_devices * device_speeds(problem)[devices]
    sent, bandwidth = 2 * count * cut.crossing, problem.cluster.bandwidth[np.ix_(devices, devices)]
    programs = stage_programs(cut.work_us, cut.parameters, sent, speed, bandwidth, count)
    num_layers = len(cut.work_us)
    return [
        Plan(tuple(tuple(devices[list(own)].tolist()) for own in stages), borders, num_layers, whole)
        for stages, borders in programs
    ]


@dataclass(frozen=True)
class Plan:
    """P stages of contiguous layers, each on some devices; interleaved where two are on the same."""

    devices: Stages
    borders: tuple[int, ...]  # (P-1,) first layer of each stage but the first
    num_layers: int
    whole: bool = False  # whether the layers keep modules whole

    @classmethod
    def balanced(cls, problem: PlacementProblem, devices: Stages, whole: bool = False) -> Plan:
        """Stages whose work, by the speed of their devices, is as equal as whole layers allow."""
        work = layers(problem, whole).work_us
        speed = np.array([device_speeds(problem)[list(own)].sum() for own in devices])
        low, high = float(work.sum() / speed.sum()), float(work.sum() / speed.min())
        for _ in range(50):
            middle = (low + high) / 2
            low, high = (low, middle) if _filled(work, speed * middle)[1] else (middle, high)
        return cls(devices, _filled(work, speed * high)[0], len(work), whole)

    @property
    def interleaved(self) -> bool:
        """Whether a device has several stages."""
        return len({device for own in self.devices for device in own}) < sum(map(len, self.devices))

    def moved(self, border: int, step: int) -> Plan | None:
        """With a border moved by some layers; None where a stage would lose its last."""
        borders = list(self.borders)
        borders[border] += step
        if any(a >= b for a, b in itertools.pairwise([0, *borders, self.num_layers])):
            return None
        return replace(self, borders=tuple(borders))

    def even(self, problem: PlacementProblem) -> bool:
        """Whether all stages have equally many replicas, which take turns and get equally many micro-batches."""
        count, replicas, speeds = num_micro_batches(problem.graph), len(self.devices[0]), device_speeds(problem)
        turns = np.arange(count) % replicas
        dealt = [_deal(count, speeds[list(own)]) for own in self.devices]
        same = all(len(own) == replicas for own in self.devices) and count % replicas == 0
        return same and all(np.array_equal(row, turns) for row in dealt)

    def placement(self, problem: PlacementProblem) -> np.ndarray:
        """(N,) devices of the ops.

        Parameters are spread over the replicas of their stage by their bytes, and so is what else belongs to no
        micro-batch; what is made of a parameter, such as its copy in 16 bits, goes with it.
        """
        graph, speeds = problem.graph, device_speeds(problem)
        stage = np.searchsorted(self.borders, layers(problem, self.whole).number, side="right")
        dealt = [np.array(own)[_deal(num_micro_batches(graph), speeds[list(own)])] for own in self.devices]
        placement = np.array(dealt)[stage, np.maximum(graph.micro_batches, 0)]
        load, homes = np.zeros(problem.num_devices), {}
        free = (graph.micro_batches == NO_MICRO_BATCH) & (num_micro_batches(graph) > 1)  # else all ops have none
        for op in graph.topological_order[free[graph.topological_order]].tolist():
            key = (int(graph.colocation[op]), -1) if graph.colocation[op] >= 0 else (-1, op)
            made_of = [of for of in graph.reads[op] if free[of]]
            if key[1] == op and made_of:
                homes[key] = int(placement[made_of[0]])
            if key not in homes:
                homes[key] = home = min(self.devices[stage[op]], key=lambda device: float(load[device]))
                load[home] += graph.param_bytes[op] + 1
            placement[op] = homes[key]
        for op in np.flatnonzero(graph.colocation >= 0).tolist():
            placement[op] = homes.setdefault((int(graph.colocation[op]), -1), placement[op])
        return placement


def _filled(work: np.ndarray, room: np.ndarray) -> tuple[tuple[int, ...], bool]:
    """Borders of stages that take layers one after another while they have room, a layer at least; whether all fit."""
    borders, layer, stages = [], 0, len(room)
    for stage in range(stages):
        taken, last = 0.0, len(work) - (stages - 1 - stage)
        first = layer
        while layer < last and (layer == first or taken + work[layer] <= room[stage]):
            taken += work[layer]
            layer += 1
        borders.append(layer)
    return tuple(borders[:-1]), layer == len(work) and bool(taken <= room[-1])


def _deal(count: int, speed: np.ndarray) -> np.ndarray:
    """(M,) the replica of each micro-batch: the one that would be done with it first."""
    done, dealt = np.zeros(len(speed)), np.empty(count, np.int64)
    for micro_batch in range(count):
        dealt[micro_batch] = replica = int(((done + 1) / speed).argmin())
        done[replica] += 1
    return dealt
