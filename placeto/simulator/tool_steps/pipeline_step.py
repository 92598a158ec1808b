"""The step of a pipeline in whole chunks, as torchrun runs it, with the parameters of a stage on each replica.

After its last chunk a rank adds up the gradients of its stages with the other replicas, by all-reduce in a ring in the
order of the cluster, and divides them by the number of micro-batches. No parameter is sent, and each replica keeps the
state of the optimizer. Each device keeps to the list of its chunks.

Costs that `placeto profile --processes` has measured have the time that torch takes in addition to the ops: for a
chunk, for a backward pass in two chunks in place of one, and for the additions of a ring. With other costs, a chunk
takes the time of its ops, and an addition of a ring takes the time that it would take as an op.

Legend: N ops, S stages, R replicas, D devices.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from placeto.problem.cluster import STATIC_ORDERS
from placeto.problem.costs.profiled import Fit
from placeto.problem.graph.gradient_sums import contributions, gradient_sums
from placeto.problem.problem import PlacementProblem
from placeto.simulator.result import PlacementResult, as_listed
from placeto.simulator.schedule import simulate
from placeto.simulator.tool_steps.chunk_order import ChunkOrder, order_chunks
from placeto.simulator.tool_steps.routes import ring, shares
from placeto.simulator.tool_steps.step_graph import ADDITION, Exchange, Output, Record, StepGraph, addition

CHUNK, SPLIT, SUM = "torchrun.chunk", "torchrun.split", "torchrun.sum"
"""Names in measured costs for the time that torch takes in addition to the ops: for a chunk; for I and W in place of B,
for each parameter of the stage and each of its bytes; and for a ring's addition, for each tensor and byte."""
_TRIED = 3  # static orders, beside a placement's own; the others were best in none of 15 plans


class _Gradients(NamedTuple):
    """The gradients of a stage."""

    bytes: int = 0
    tensors: int = 0


def in_whole_chunks(result: PlacementResult) -> tuple[PlacementResult, PlacementResult]:
    """Return a plan's placement with its best order of whole chunks, and the same placement as torch runs it.

    The order is made from the placement's own order of ops, or from one of three static orders. Chunks in the fastest
    order of ops took up to 25 % longer than the ops. Chunks of another order took up to 11 % less time than these (15
    plans of transformers on three clusters). The second result is of another graph: see `pipeline_step`.

    Raises:
        PlanError: torch can't run the placement.
    """
    own_schedule, problem = result.schedule(), result.problem
    static = (simulate(problem.under(order), result.placement, plan=result.plan) for order in STATIC_ORDERS[:_TRIED])
    chunks = [order_chunks(schedule) for schedule in (own_schedule, *static)]
    best = min(chunks, key=lambda made: (not made.schedule.fits, made.schedule.makespan_us))
    started = best.schedule.order[best.schedule.order < problem.num_ops]
    order, schedule = as_listed(problem, best.schedule.placement[: problem.num_ops], started)
    placement, makespan, fits = schedule.placement, schedule.makespan_us, schedule.fits
    placed = replace(result, placement=placement, makespan_us=makespan, fits=fits, order=order, plan=best.plan)
    return placed, pipeline_step(replace(best, schedule=schedule))


def pipeline_step(order: ChunkOrder) -> PlacementResult:
    """Return a plan in whole chunks as torch runs it.

    The result is of another graph, which also has the ops that torch adds to the step.
    """
    schedule, stage, devices, kinds = order.schedule, order.stage, order.plan.replicas, order.kinds
    problem, graph, names = schedule.problem, schedule.problem.graph, schedule.problem.cluster.device_names
    step = StepGraph(problem, schedule.placement)
    step.copy(_readers(step), {})
    gradients = dict[int, _Gradients]()
    for tensor in dict(contributions(graph)).values():  # one for each parameter
        before = gradients.get(number := int(stage[graph.producer[tensor]]), _Gradients())
        gradients[number] = _Gradients(before.bytes + int(graph.output_bytes[tensor]), before.tensors + 1)
    lists = [[op for op in ops.tolist() if step.kept[op]] for ops in schedule.device_order]
    _add_chunks(step, lists, stage, kinds, gradients)
    for ops in lists:
        for op in (op for op in ops if stage[op] < 0):  # which add up losses
            step.keep(op)
    for number in sorted(gradients):
        replicas = sorted({row[number] for row in devices})
        if len(replicas) > 1:
            _all_reduce(step, number, replicas, gradients[number])
        for device in replicas:
            name, size = f"gradients of stage {number} divided on {names[device]}", gradients[number].bytes
            fields = {"type": ADDITION, "pass": "backward", "flops": size / 4, "bytes_accessed": 2.0 * size}
            step.add(name, device, fields)
    tool_problem, placement, listed = step.built(listed=True)
    run = simulate(tool_problem, placement, order=listed)
    return PlacementResult(placement, run.makespan_us, run.fits, 1, 0.0, (), tool_problem, order=listed)


def _readers(step: StepGraph) -> dict[int, list[int]]:
    """Return op of no micro-batch -> the devices on which ops read it, themselves or by way of ops on it alone."""
    graph, device = step.captured, step.device
    on: dict[int, set[int]] = {op: set() for op in np.flatnonzero(step.shared & ~step.summed).tolist()}
    edges = np.flatnonzero(step.shared[graph.edge_src] & step.kept[graph.edge_dst])
    for op, reader in zip(graph.edge_src[edges].tolist(), device[graph.edge_dst[edges]].tolist(), strict=True):
        on[op].add(reader)
    for op in (op for op in graph.topological_order[::-1].tolist() if op in on):
        on[op] = on[op] or {int(device[op])}
        for source in graph.reads[op]:
            on[source] |= on[op]
    return {op: sorted(devices) for op, devices in on.items()}


def _add_chunks(
    step: StepGraph,
    lists: Sequence[Sequence[int]],
    stage: np.ndarray,
    kinds: Sequence[str],
    gradients: dict[int, _Gradients],
) -> None:
    """Add the ops of each device's chunks, each followed by the sums of the gradients that it contributes to."""
    graph, sums = step.captured, gradient_sums(step.captured)
    # Home of a parameter's gradient -> an op that adds to this gradient.
    adding = dict(zip(sums.home.tolist(), sums.addition[sums.ptr[:-1] + 1].tolist(), strict=True))
    contributed = defaultdict[int, list[tuple[int, int]]](list)
    for home, tensor in contributions(graph):
        contributed[int(graph.producer[tensor])].append((home, tensor))
    for device, ops in enumerate(lists):
        totals, chunk = dict[int, Output](), None
        for op in (op for op in ops if stage[op] >= 0):
            number, micro_batch = int(stage[op]), int(graph.micro_batches[op])
            if (number, kinds[op], micro_batch) != chunk:
                chunk = number, kinds[op], micro_batch
                _begin_chunk(step, device, *chunk, gradients.get(number, _Gradients()))
            step.keep(op)
            for home, tensor in contributed[op]:
                if home not in totals:
                    totals[home], step.resident[tensor] = step.made(tensor), True
                    continue
                fields = {"inputs": [totals[home], step.made(tensor)], "micro_batch": micro_batch}
                name = f"{graph.op_names[home]} of {graph.op_names[op]}"
                totals[home] = step.add(name, device, fields | {"resident_outputs": [0]}, like=adding[home])


def _begin_chunk(step: StepGraph, device: int, stage: int, kind: str, micro_batch: int, gradients: _Gradients) -> None:
    """Add an op for the time that torch takes for a chunk in addition to its ops, if that was measured."""
    if fit := _measured(step.problem, device, CHUNK):
        us, split = fit.fixed_us, _measured(step.problem, device, SPLIT)
        if kind == "W" and split:
            us += gradients.tensors * split.fixed_us + gradients.bytes * split.us_per_byte
        time = {"time_us": {step.problem.cluster.devices[device].kind: us}}
        step.add(f"{stage}{kind}{micro_batch}", device, {"type": CHUNK, "micro_batch": micro_batch} | time)


def _all_reduce(step: StepGraph, stage: int, devices: Sequence[int], gradients: _Gradients) -> None:
    """Add the ops by which the replicas of a stage sum up their gradients."""
    problem = step.problem

    def name(what: str, device: int) -> str:
        return f"gradients of stage {stage}, {what} on {problem.cluster.device_names[device]}"

    def cost(device: int, count: int, size: float) -> Record:
        fit = _measured(problem, device, SUM)
        if fit is None or count == 0:
            return addition(device, count, size)
        us = gradients.tensors * fit.fixed_us + fit.us_per_byte * size
        return addition(device, count, size) | {"type": SUM, "time_us": {problem.cluster.devices[device].kind: us}}

    sizes, routes = shares(gradients.bytes, len(devices)), ring(devices)
    step.all_reduce(Exchange(name, sizes, routes, {"pass": "backward"}, in_place=True, cost=cost), devices)


def _measured(problem: PlacementProblem, device: int, what: str) -> Fit | None:
    """Return the fit of `what` that was measured on devices of this kind under torchrun; None if there is none."""
    fits: dict[str, Fit] = getattr(problem.costs, "fits", {}).get(problem.cluster.devices[device].kind, {})
    return fits.get(what)
