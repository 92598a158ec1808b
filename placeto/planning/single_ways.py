"""Single ways to run a step: one device, whole modules, replicas, and plans in the best order of their ops.

The same simulator runs all of them, over the same links. A plan may recompute blocks: its step is then another graph.

Legend: D devices, M micro-batches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from placeto.errors import PlanError
from placeto.heuristics.pipelines.order_choice import orders_to_try, try_bounded_orders
from placeto.heuristics.pipelines.plans import improved, make_plan
from placeto.planning.planned_steps import PlannedStep
from placeto.planning.runnable import Runner
from placeto.problem.problem import PlacementProblem
from placeto.problem.step.layers import layers
from placeto.problem.step.plan import Plan, dealt
from placeto.simulator.evaluator import Evaluator, PlacementResult
from placeto.simulator.readings.memory_timeline import CATEGORIES, memory_by_category, peak_by_category
from placeto.simulator.schedule import Schedule, simulate
from placeto.simulator.tool_steps.module_step import in_whole_modules
from placeto.simulator.tool_steps.replica_step import replicated

_ANY = 10**18
"""Bytes that no device ever needs."""


def one_device(problem: PlacementProblem, device: int, blocks: tuple[str, ...] = ()) -> PlannedStep:
    """Return the way in which one device runs all micro-batches, and recomputes `blocks`."""
    plan = replace(make_plan(problem, ((device,),), ()), recomputed=blocks)
    problem = plan.step(problem)
    schedule = simulate(problem, np.full(problem.num_ops, device), plan=plan)
    return planned(plan, result := PlacementResult.of(schedule), result, schedule=schedule)


def whole_modules(problem: PlacementProblem) -> list[PlannedStep]:
    """Return the way with whole blocks on the fewest devices on which it fits; on the most if it fits on none.

    All devices but CPUs are tried, half of them, and so on. The blocks run one after the other in program order, as in
    what `placeto export --format device-map` writes. So with more devices than are needed, the step is no faster.
    """
    computing, steps = problem.cluster.computing, list[PlannedStep]()
    order = [int(d) for d in np.argsort(-problem.speeds, kind="stable") if d in computing]
    memory, resident = problem.cluster.memory[order], int(problem.resident_bytes.sum())
    counts = [len(order) >> halved for halved in range(len(order).bit_length() - 1)][::-1]
    for count in (each for each in counts if resident <= memory[:each].sum() or each == len(order)):
        if count > len(layers(problem, False)) or any(step.fits for step in steps):
            break
        plan = make_plan(problem, tuple((device,) for device in order[:count]))
        stage = plan.layers(problem).stage(plan.borders)
        try:
            mapped = in_whole_modules(simulate(problem, np.array(order)[stage])).in_order
        except PlanError:  # the graph has no modules
            return []
        if len(np.unique(mapped.placement)) == count:
            result = PlacementResult.of(mapped)
            steps = [planned(None, result, result, "accelerate", mapped)]
    return steps


def in_order(
    problem: PlacementProblem, plan: Plan, runner: Runner, order: np.ndarray | None = None
) -> list[PlannedStep]:
    """Return the ways of a plan in the best order of its ops; none if the tool that is to run it can't.

    Args:
        problem: the problem of the step, without what the plan recomputes.
        plan: the plan.
        runner: what is to run it.
        order: the order (N,) of its ops; None = the best is chosen, and borders are moved.
    """
    step = plan.step(problem)
    if order is None:
        result = _in_best_order(step, plan, partial(runner.keeps, problem))
    else:
        result = PlacementResult.of(simulate(step, plan.placement(step), order=order, plan=plan), order)
    if len(plan.devices) == 1:
        return replicas(problem, plan, result)
    if made := runner.run(result, order is not None):
        placed, run = made
        return [planned(placed.plan, run, placed, runner.wanted)]
    return []


def beyond_memory(problem: PlacementProblem, plan: Plan, runner: Runner) -> list[PlannedStep]:
    """Return the ways of a plan in the order that is best if memory doesn't matter."""

    def sized(problem: PlacementProblem, memory: Sequence[int]) -> PlacementProblem:
        devices = zip(problem.cluster.devices, memory, strict=True)
        resized = tuple(replace(device, memory=size) for device, size in devices)
        return replace(problem, cluster=replace(problem.cluster, devices=resized))

    def limited(result: PlacementResult) -> PlacementResult:
        on = sized(result.problem, problem.cluster.memory.tolist())
        return replace(result, problem=on, fits=bool((result.schedule().peak_memory <= on.cluster.memory).all()))

    return [
        replace(way, result=limited(way.result), placement=limited(way.placement) if way.placement else None)
        for way in in_order(sized(problem, [_ANY] * problem.num_devices), plan, runner)
    ]


def _in_best_order(problem: PlacementProblem, plan: Plan, keep: Callable[[Plan], bool]) -> PlacementResult:
    """Return a plan's placement in the best order, with its borders moved as far as that makes the step shorter."""
    evaluator, placement, orders = Evaluator(problem), plan.placement(problem), orders_to_try(problem)
    evaluator.score_plan(plan, placement)
    moved = improved(evaluator, plan, orders, keep)
    for each in dict.fromkeys((plan, moved)) if orders else ():
        try_bounded_orders(evaluator, each.placement(problem))
    return evaluator.result()


def replicas(problem: PlacementProblem, plan: Plan, placed: PlacementResult) -> list[PlannedStep]:
    """Return the ways in which frameworks run the replicas of a placed plan: in each stage of ZeRO."""
    training = problem.graph.mode == "training"  # without gradients and optimizer, parameters alone are shared out
    plans = [plan, *[replace(plan, sharding=(1,))] * training]
    ways = [replicas_of(problem, each, placed) for each in plans]
    if plan.num_micro_batches % len(plan.used) == 0:
        ways += [sharded(problem, plan.devices[0], stage) for stage in ((2, 3) if training else (3,))]
    return ways


def sharded(
    problem: PlacementProblem, devices: tuple[int, ...], stage: int, blocks: tuple[str, ...] = ()
) -> PlannedStep:
    """Return the way in which replicas share out their parameters, in stage 2 or 3 of ZeRO, and recompute `blocks`.

    The replicas take turns.
    """
    taken = dealt(problem.graph.num_micro_batches, np.ones(len(devices)))
    how: dict[str, Any] = {"sharding": (stage,), "recomputed": blocks, "width": problem.width}
    return replicas_of(problem, Plan((devices,), (), (taken,), len(layers(problem, False)), **how))


def replicas_of(problem: PlacementProblem, plan: Plan, placed: PlacementResult | None = None) -> PlannedStep:
    """Return the way in which frameworks run the replicas of a plan, in its stage of ZeRO.

    In stages 0 and 1, each replica has all weights and gradients, and the optimizer's state or a part of it. Received
    copies count as weights there, and contributions to a gradient as the gradient. So a device is fullest at the moment
    when it holds the most activations.

    Args:
        problem: the problem of the step, without what the plan recomputes.
        plan: a plan with one stage.
        placed: its placement; None = in the order of the cluster.
    """
    problem, stage = plan.step(problem), max(plan.sharding, default=0)
    run = simulate(*replicated(problem, plan.device[0].tolist(), max(stage, 1)))
    if stage > 1:
        return replace(planned(plan, PlacementResult.of(run), None, schedule=run), graph=problem.graph)
    placed = placed or PlacementResult.of(simulate(problem, plan.placement(problem), plan=plan))
    graph, memory, used = problem.graph, run.problem.cluster.memory, np.unique(run.placement).tolist()
    weights, trained = int(graph.param_bytes.sum()), int(graph.trained_bytes.sum())
    state = (int(problem.resident_bytes.sum()) - weights - trained) // (len(used) if stage else 1)
    at, held = CATEGORIES.index("activations"), memory_by_category(run, used)
    most = {device: int(held[device][1][:, at].max()) for device in used}
    fullest = max(most, key=lambda device: (weights + trained + state + most[device]) / int(memory[device]))
    of_fullest = {"weights": weights, "gradients": trained, "optimizer": state, "activations": most[fullest]}
    return PlannedStep(plan, PlacementResult.of(run), placed, fullest, of_fullest | {"received": 0})


def planned(
    plan: Plan | None,
    result: PlacementResult,
    placement: PlacementResult | None,
    tool: str | None = None,
    schedule: Schedule | None = None,
) -> PlannedStep:
    """Return a result as a way to run the step, with the memory of its fullest device.

    Args:
        plan: the plan, if it has one.
        result: the simulation of the way.
        placement: of the captured step; None if there is none.
        tool: the tool as which it is simulated.
        schedule: the schedule of `result`, if it is known.
    """
    schedule, memory = schedule or result.schedule(), result.problem.cluster.memory
    used = np.unique(schedule.placement)
    fullest = int(used[(schedule.peak_memory / memory)[used].argmax()])
    return PlannedStep(plan, result, placement, fullest, peak_by_category(schedule, fullest), tool)
