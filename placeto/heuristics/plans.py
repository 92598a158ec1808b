"""Plans that people run by hand, for steps in micro-batches: stages of contiguous layers, each on several replicas.

One stage is data parallelism, one replica a pipeline. After PipeDream (Narayanan et al., SOSP 2019) and GPipe (Huang et
al., NeurIPS 2019). A stage's share of the work follows from the speed of its devices, a replica's share of the
micro-batches from its own.

Legend: N ops, D devices, P stages, M micro-batches, L layers.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from placeto.heuristics.bounded_orders import bounded_orders
from placeto.heuristics.common import device_speeds, run
from placeto.heuristics.naive import try_single
from placeto.heuristics.stage_program import stage_programs
from placeto.problem.cluster import STATIC_ORDERS
from placeto.problem.graph import ComputationGraph
from placeto.problem.graph_checks import BACKWARD_PASSES, NO_MICRO_BATCH
from placeto.problem.problem import PlacementProblem
from placeto.simulator.evaluator import Evaluator, PlacementResult

Stages = tuple[tuple[int, ...], ...]
"""The devices of each stage."""
_ON_ORDERS = 0.02  # of what is left after the starts
_BOUNDED = 3  # of the best plans: how many are tried in orders made for them
FIRST_ORDERS = ("priority", "earlier-0.02")
"""Orders under which all plans are tried; the best placement so far is then tried under all others."""


def pipeline(
    problem: PlacementProblem, *, simulations: int | None = None, seconds: float | None = None, seed: int = 0
) -> PlacementResult:
    """Stages of contiguous layers on replicas, or one device: the best plan and order for a step in micro-batches."""
    return run(_try_all, problem, simulations, seconds, seed)


def torch_pipeline(
    problem: PlacementProblem, *, simulations: int | None = None, seconds: float | None = None, seed: int = 0
) -> PlacementResult:
    """As pipeline, of plans that torch.distributed runs: stages have equally many replicas; see `placeto export`."""
    return run(_try_even, problem, simulations, seconds, seed)


def _try_all(evaluator: Evaluator, seed: int) -> None:
    try_single(evaluator, seed)
    try_plans(evaluator, seed)


def _try_even(evaluator: Evaluator, seed: int) -> None:
    try_plans(evaluator, seed, even=True)


def try_plans(evaluator: Evaluator, seed: int, even: bool = False) -> None:
    """The rule behind `pipeline`: all plans under the likeliest orders, and the best of all placements under each.

    Then borders of the best plan's stages move, a layer at a time, as long as that helps. The evaluator goes on under
    the static order of the best placement. The best plans are also tried in orders made for them alone: see
    `placeto.heuristics.bounded_orders`. Where there are no micro-batches, or the problem's dispatch is no static order,
    the order stays.

    Args:
        evaluator: scores, and keeps the best.
        seed: has no say.
        even: of plans whose stages deal the micro-batches in the same way, equally many to each replica, if there are.
    """
    problem = evaluator.problem
    decided = orders_to_try(problem)
    different: dict[bytes, tuple[Plan, np.ndarray]] = {}
    for plan in _even(problem) if even else all_plans(problem):  # with more devices than micro-batches some place alike
        different.setdefault((placement := plan.placement(problem)).tobytes(), (plan, placement))
    plans, placements = (list(of) for of in zip(*different.values(), strict=True))
    scores = np.full(len(plans), math.inf)
    for order in [name for name in FIRST_ORDERS if name in decided] or [problem.dispatch]:
        evaluator.reorder(order)
        for number, placement in enumerate(placements):
            scores[number] = min(scores[number], evaluator.score_ops(placement))
    choose_order(evaluator, decided)
    best = np.argsort(scores, kind="stable")[:_BOUNDED]
    if not evaluator.exhausted:
        moved = _move_borders(evaluator, problem, plans[best[0]], evaluator.score_ops(placements[best[0]]))
        if moved != plans[best[0]]:
            choose_order(evaluator, decided)
            placements.append(moved.placement(problem))
            best = np.append(len(plans), best)
    for number in best if decided else ():
        _bound(evaluator, placements[number])


def _move_borders(evaluator: Evaluator, problem: PlacementProblem, plan: Plan, score: float) -> Plan:
    """Move borders of stages by a layer, each move that helps at once, until none does; returns the plan."""
    better = True
    while better and not evaluator.exhausted:
        better = False
        for border in range(len(plan.borders)):
            for step in (-1, 1):
                moved = plan.moved(border, step)
                if moved is not None and (after := evaluator.score_ops(moved.placement(problem))) < score:
                    plan, score, better = moved, after, True
    return plan


def _bound(evaluator: Evaluator, placement: np.ndarray) -> None:
    """Simulate a placement in orders made for it."""
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
        _bound(evaluator, evaluator.best)
    _bound(evaluator, searched)


def num_micro_batches(graph: ComputationGraph) -> int:
    """M, 1 where the graph has no micro-batches."""
    return max(1, int(graph.micro_batches.max(initial=NO_MICRO_BATCH)) + 1)


def all_plans(problem: PlacementProblem) -> list[Plan]:
    """The plans that are tried: grids, stages of equally many devices, and those of a program over layers."""
    grids = [Plan.balanced(problem, devices) for devices in _grids(problem)]
    return grids + [plan for plan in _programmed(problem) if plan.devices not in {grid.devices for grid in grids}]


def _even(problem: PlacementProblem) -> list[Plan]:
    """Of all plans those that are even, or all where none is."""
    plans = all_plans(problem)
    return [plan for plan in plans if plan.even(problem)] or plans


def _grids(problem: PlacementProblem) -> list[Stages]:
    """Stages of equally many devices, whose replicas are neighbours, or else the stages of each replica."""
    devices, found = np.arange(problem.num_devices), []
    for stages in range(1, len(devices) + 1):
        replicas = len(devices) // stages
        if len(devices) % stages == 0 and replicas <= num_micro_batches(problem.graph):
            found += [devices.reshape(stages, replicas), devices.reshape(replicas, stages).T]
    return list(dict.fromkeys(tuple(tuple(row) for row in grid.tolist()) for grid in found))


def _programmed(problem: PlacementProblem) -> list[Plan]:
    """Plans whose stages may have different numbers of replicas."""
    cut, count = layers(problem), num_micro_batches(problem.graph)
    speed = problem.num_devices * device_speeds(problem)
    sent, bandwidth = 2 * count * cut.crossing, problem.cluster.bandwidth
    programs = stage_programs(cut.work_us, cut.parameters, sent, speed, bandwidth, count)
    return [Plan(devices, borders, len(cut.work_us)) for devices, borders in programs]


@dataclass(frozen=True)
class Plan:
    """P stages of contiguous layers, each on devices of its own."""

    devices: Stages
    borders: tuple[int, ...]  # (P-1,) first layer of each stage but the first
    num_layers: int

    @classmethod
    def balanced(cls, problem: PlacementProblem, devices: Stages) -> Plan:
        """Stages whose work, by the speed of their devices, is as equal as whole layers allow."""
        work = layers(problem).work_us
        speed = np.array([device_speeds(problem)[list(own)].sum() for own in devices])
        low, high = float(work.sum() / speed.sum()), float(work.sum() / speed.min())
        for _ in range(50):
            middle = (low + high) / 2
            low, high = (low, middle) if _filled(work, speed * middle)[1] else (middle, high)
        return cls(devices, _filled(work, speed * high)[0], len(work))

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

        Parameters, and what belongs to no micro-batch, are spread over the replicas of their stage by their bytes.
        """
        graph, speeds = problem.graph, device_speeds(problem)
        stage = np.searchsorted(self.borders, layers(problem).number, side="right")
        dealt = [np.array(own)[_deal(num_micro_batches(graph), speeds[list(own)])] for own in self.devices]
        placement = np.array(dealt)[stage, np.maximum(graph.micro_batches, 0)]
        load, homes = np.zeros(problem.num_devices), {}
        free = graph.micro_batches == NO_MICRO_BATCH
        for op in graph.topological_order[free[graph.topological_order]].tolist():
            key = (int(graph.colocation[op]), -1) if graph.colocation[op] >= 0 else (-1, op)
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


@dataclass(frozen=True)
class Layers:
    """L layers of a graph, one after the other."""

    number: np.ndarray  # (N,) int64, of each op
    work_us: np.ndarray  # (L,) of all micro-batches, a mean over devices
    parameters: np.ndarray  # (L,) bytes of parameters
    crossing: np.ndarray  # (L-1,) bytes that cross the border before each layer but the first, in one forward pass


@lru_cache(maxsize=16)
def layers(problem: PlacementProblem) -> Layers:
    """The layers of a graph, between which a plan may cut it.

    The forward pass of a micro-batch is cut where it goes on in another module, if fewer bytes cross the cut than the
    cuts beside it: no layer reads from a later one. What stands in no module goes with the last layer that it reads
    from. An op of the backward pass goes with the ops of its module whose tensors it reads, or with the last ones of
    its module that come before what it reads; without a module, with the first layer that it reads from. Parameters go
    with their first user; cached.
    """
    graph, busy = problem.graph, problem.busy_us.mean(axis=1)
    modules, micro_batch = graph.modules, graph.micro_batches.tolist()
    order = graph.topological_order.tolist()
    backward = [kind in BACKWARD_PASSES for kind in graph.passes]
    producers: list[list[int]] = [[] for _ in order]
    consumers: list[list[int]] = [[] for _ in order]
    for src, dst in zip(graph.edge_src.tolist(), graph.edge_dst.tolist(), strict=True):
        producers[dst].append(src)
        consumers[src].append(dst)
    where = _runs(graph, busy)
    runs_of: dict[str, list[int]] = {}
    for op in order:
        if where[op] >= 0 and where[op] not in (known := runs_of.setdefault(modules[op], [])):
            known.append(where[op])
    for op in order:
        if where[op] >= 0:
            continue
        near = [where[p] for p in producers[op] if where[p] >= 0]
        if runs := runs_of.get(modules[op]):
            own = [where[p] for p in producers[op] if modules[p] == modules[op] and not backward[p] and busy[p] > 0.0]
            later = [where[p] for p in producers[op] if backward[p] and where[p] >= 0]
            before = [run for run in runs if not later or run <= min(later)]
            where[op] = max([run for run in own if run in before] or before or runs)
        elif near:
            where[op] = min(near) if backward[op] else max(near)
    for op in reversed(order):
        if where[op] < 0 or graph.op_types[op] == "parameter":
            where[op] = min((where[c] for c in consumers[op] if where[c] >= 0), default=0)
    first = min(max(micro_batch), 0)
    one = [op for op in order if micro_batch[op] == first and not backward[op]]
    members, made = set(one), _bytes_made(graph)
    crossing = np.zeros(max(where) + 2, np.int64)  # bytes across the cut before each run, of one micro-batch
    for op in one:
        last = max([where[c] for c in consumers[op] if c in members], default=0)
        if last > where[op] and graph.op_types[op] != "parameter":
            crossing[where[op] + 1] += made[op]
            crossing[last + 1] -= made[op]
    crossing = crossing.cumsum()[1:-1]  # (runs - 1,)
    beside = np.concatenate([[np.inf], crossing, [np.inf]])
    cut = (crossing <= beside[:-2]) & (crossing <= beside[2:])
    layer = np.concatenate([[0], cut.cumsum()])[where]
    parameters = np.where(np.array(graph.op_types) == "parameter", made, 0)
    work_us, held = (np.bincount(layer, weights=of) for of in (busy, parameters))
    return Layers(layer, work_us, held, crossing[cut])


def _bytes_made(graph: ComputationGraph) -> np.ndarray:
    """(N,) bytes of all outputs of each op."""
    of_op = np.repeat(np.arange(graph.num_ops), np.diff(graph.output_ptr))
    return np.bincount(of_op, weights=graph.output_bytes, minlength=graph.num_ops).astype(np.int64)


def _runs(graph: ComputationGraph, busy: np.ndarray) -> list[int]:
    """Of each op of the forward pass that stands in a module and takes time: which run of ops of one module it is in.

    Runs are numbered in the order of one micro-batch, those of others by module and how often it has come before; -1
    for all other ops.
    """
    number: dict[tuple[str, int], int] = {}
    seen: dict[int, dict[str, int]] = {}
    now: dict[int, str] = {}
    where = [NO_MICRO_BATCH] * graph.num_ops
    for op in graph.topological_order.tolist():
        module, micro_batch = graph.modules[op], int(graph.micro_batches[op])
        if module and busy[op] > 0.0 and graph.passes[op] not in (*BACKWARD_PASSES, "optimizer"):
            met = seen.setdefault(micro_batch, {})
            if now.get(micro_batch) != module:
                met[module], now[micro_batch] = met.get(module, -1) + 1, module
            where[op] = number.setdefault((module, met[module]), len(number))
    return where
